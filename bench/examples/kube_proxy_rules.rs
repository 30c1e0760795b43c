//! Writes the rules of a running kube-proxy into a directory.
//!
//! usage: `kube_proxy_rules DIRECTORY udp|tcp SERVICES`

use std::{env, fs, path::PathBuf};

use anyhow::{Context, Result, bail};
use bench::datapath::{Protocol, balancers::rules};

fn main() -> Result<()> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let [directory, protocol, services] = &arguments[..] else {
        bail!("usage: kube_proxy_rules DIRECTORY udp|tcp SERVICES");
    };
    let protocol = match protocol.as_str() {
        "udp" => Protocol::Udp,
        "tcp" => Protocol::Tcp,
        other => bail!("{other} is neither udp nor tcp"),
    };
    let (directory, services) = (PathBuf::from(directory), services.parse());
    fs::create_dir_all(&directory)?;
    let show = |text: &str| eprintln!("{text}");
    rules::take(
        &directory,
        protocol,
        services.context("a number of Services")?,
        &show,
    )
}
