//! Loads the embedded object, lets the kernel verify each of its programs, and puts those of tracepoints in place.
//!
//! The kernel matrix runs it on every supported kernel.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail, ensure};
use aya::{EbpfLoader, programs::Program};
use fastpath::load::Loader;
use xdp_prog::abi::map;

/// Half of what the verifier goes through before it gives up (`BPF_COMPLEXITY_LIMIT_INSNS`): other compilers and later
/// kernels find other ways through a program.
const MOST_VERIFIED: u32 = 500_000;

fn main() -> Result<()> {
    let mut object = EbpfLoader::new()
        .load(fastpath::object::bytes())
        .context("loading the object")?;
    let mut verified = BTreeMap::new();
    for (name, program) in object.programs_mut() {
        match program {
            Program::Xdp(program) => program.load(),
            Program::SchedClassifier(program) => program.load(),
            Program::RawTracePoint(program) => program.load(),
            other => bail!(
                "program {name} has the unexpected type {:?}",
                other.prog_type()
            ),
        }
        .with_context(|| format!("loading program {name}"))?;
        let instructions = program.info()?.verified_instruction_count();
        let instructions =
            instructions.context("the kernel does not tell how much it has verified")?;
        verified.insert(name.to_owned(), instructions);
    }
    ensure!(!verified.is_empty(), "the object has no program");
    for (name, instructions) in &verified {
        println!("verified: {name} {instructions}");
    }
    println!("verified: all {}", verified.values().sum::<u32>());
    for (name, instructions) in &verified {
        ensure!(
            *instructions <= MOST_VERIFIED,
            "program {name} takes {instructions} verified instructions of at most {MOST_VERIFIED}"
        );
    }
    // The others have been verified above.
    let stubs = lab::stub_object(fastpath::object::bytes()).leak();
    let loader = Loader::unpinned().object(stubs);
    let mut loaded = loader.max_entries(map::LUT, 1024).load()?;
    loaded.count_failures().context("counting at tracepoints")?;
    println!(
        "{} programs verified, {}",
        verified.len(),
        fastpath::object::built_with()
    );
    Ok(())
}
