//go:build tools

// Package helm pins what build.sh builds, see the directory above.
package helm

import _ "helm.sh/helm/v4/cmd/helm"
