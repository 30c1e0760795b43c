//! Prints how many instructions a packet takes on each way; `make instructions` runs it where that is counted.

use anyhow::Result;
use bench::datapath::instructions::{self, Instructions};

fn main() -> Result<()> {
    println!("way            ip  l4   flows  instructions");
    instructions::count(|found: &Instructions| println!("{}", found.line()))
}
