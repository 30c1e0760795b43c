//! Tells the crate which compiler builds it: a fact of results.

use std::{
    env,
    process::{Command, ExitCode},
};

fn main() -> ExitCode {
    println!("cargo::rerun-if-changed=build.rs");
    let rustc = env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let Ok(output) = Command::new(rustc).arg("-vV").output() else {
        println!("cargo::error=rustc does not tell its version");
        return ExitCode::FAILURE;
    };
    let told = String::from_utf8_lossy(&output.stdout);
    let version = told.lines().next().unwrap_or_default();
    let llvm = told.lines().find(|line| line.starts_with("LLVM version"));
    let llvm = llvm.map(|line| format!(", {line}")).unwrap_or_default();
    println!("cargo::rustc-env=GUIDEWAY_BENCH_RUSTC={version}{llvm}");
    ExitCode::SUCCESS
}
