//! Waits until every packet that is in flight now has left the programs.

use std::time::Duration;

/// Longer than a run of a program can take, scheduling latencies included.
const QUARANTINE: Duration = Duration::from_secs(1);

/// Waits for an RCU grace period; XDP programs run as RCU readers.
///
/// membarrier(2)'s global command is `synchronize_rcu()`. Kernels with full-tickless CPUs refuse it; there the
/// function waits for a fixed time.
pub(super) fn wait() {
    const GLOBAL: libc::c_int = 1;
    // SAFETY: the call takes three integers and touches no memory.
    let result = unsafe { libc::syscall(libc::SYS_membarrier, GLOBAL, 0, 0) };
    if result != 0 {
        std::thread::sleep(QUARANTINE);
    }
}
