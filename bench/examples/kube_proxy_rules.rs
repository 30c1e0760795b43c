//! Writes the rules of a running kube-proxy into a directory, for each number of Services. Rules that are there are kept.
//!
//! usage: `kube_proxy_rules DIRECTORY SERVICES...`

use std::{env, fs, path::PathBuf};

use anyhow::{Context, Result};
use bench::datapath::{Protocol, balancers::rules};

fn main() -> Result<()> {
    let mut arguments = env::args().skip(1);
    let directory = arguments.next();
    let directory = directory.context("usage: kube_proxy_rules DIRECTORY SERVICES...")?;
    let directory = PathBuf::from(directory);
    fs::create_dir_all(&directory)?;
    for services in arguments {
        let services = services.parse().context("a number of Services")?;
        for protocol in Protocol::ALL {
            rules::take(&directory, protocol, services, &|text| eprintln!("{text}"))?;
        }
    }
    Ok(())
}
