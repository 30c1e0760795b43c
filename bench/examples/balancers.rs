//! Prints how many instructions a packet takes at Guideway and at other load balancers, one JSON row each.
//!
//! `make instructions` runs it where that is counted, with kube-proxy's rules in `/files`.

use std::path::Path;

use anyhow::Result;
use bench::datapath::balancers;

fn main() -> Result<()> {
    balancers::count(Path::new("/files"), |row| {
        let row = serde_json::to_string(row).expect("a row has plain fields");
        println!("{row}");
    })
}
