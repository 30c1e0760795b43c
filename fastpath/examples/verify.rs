//! Loads the embedded object, lets the kernel verify each of its programs, and puts those of tracepoints in place.
//!
//! The kernel matrix runs it on every supported kernel.

use anyhow::{Context, Result, bail};
use aya::{EbpfLoader, programs::Program};
use fastpath::load::Loader;
use xdp_prog::abi::map;

fn main() -> Result<()> {
    let mut object = EbpfLoader::new()
        .load(fastpath::object::bytes())
        .context("loading the object")?;
    let mut count = 0;
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
        // The verifier gives up at a million (BPF_COMPLEXITY_LIMIT_INSNS).
        let steps = program
            .info()
            .ok()
            .and_then(|info| info.verified_instruction_count());
        match steps {
            Some(steps) => println!("{name}: verified in {steps} instructions"),
            None => println!("{name}: verified"),
        }
        count += 1;
    }
    if count == 0 {
        bail!("the object has no program");
    }
    // The others have been verified above.
    let stubs = lab::stub_object(fastpath::object::bytes()).leak();
    let loader = Loader::unpinned().object(stubs);
    let mut loaded = loader.max_entries(map::LUT, 1024).load()?;
    loaded.count_failures().context("counting at tracepoints")?;
    println!(
        "{count} programs verified, {}",
        fastpath::object::built_with()
    );
    Ok(())
}
