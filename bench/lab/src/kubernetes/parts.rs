//! Programs of a cluster that use the API server: its controllers. kube-proxy is the matter of [`super::proxy`].

use super::{ControlPlane, READY_TIMEOUT, program};
use crate::{Process, Result};

impl ControlPlane {
    /// Starts a kube-controller-manager with only these controllers, such as `endpointslice-controller`, and
    /// waits until they work.
    ///
    /// # Errors
    ///
    /// [`crate::Error::Ended`] or [`crate::Error::Timeout`], with its log.
    pub fn run_controllers(&self, controllers: &[&str]) -> Result<Process> {
        let mut command = self.machine.command(program("kube-controller-manager")?);
        command
            .arg("--kubeconfig")
            .arg(self.write_kubeconfig(&self.machine, Self::ADMIN)?)
            .arg(format!("--controllers={}", controllers.join(",")))
            .args(["--leader-elect=false", "--secure-port=0"]);
        let mut manager = Process::spawn(&mut command)?;
        manager.wait_for_line("Caches are synced", READY_TIMEOUT)?;
        Ok(manager)
    }
}
