//go:build tools

// Package etcd pins what build.sh builds, see the directory above.
package etcd

import (
	_ "go.etcd.io/etcd/etcdutl/v3"
	_ "go.etcd.io/etcd/server/v3"
)
