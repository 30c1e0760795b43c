//! The programs of Guideway that are in the kernel, whichever machine of a lab loaded them.

use std::collections::{BTreeMap, BTreeSet};

use aya::programs::loaded_programs;

/// Begin of the names of Guideway's programs. The kernel keeps 15 letters of a name.
const OURS: &str = "guideway";

/// Returns the facts: `bpf.NAME`, with tag and sizes. A program that machines have in several forms has several.
pub fn facts() -> BTreeMap<String, String> {
    let mut forms: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for program in loaded_programs().flatten() {
        let Some(name) = program.name_as_str().filter(|name| name.starts_with(OURS)) else {
            continue;
        };
        let form = format!(
            "tag {:016x}, {} bytes translated, {} compiled",
            program.tag(),
            program.size_translated().unwrap_or(0),
            program.size_jitted()
        );
        forms.entry(format!("bpf.{name}")).or_default().insert(form);
    }
    let facts = forms.into_iter().map(|(name, forms)| {
        let forms: Vec<String> = forms.into_iter().collect();
        (name, forms.join("; "))
    });
    facts.collect()
}
