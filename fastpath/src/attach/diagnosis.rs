//! Finds cause and remedy of a failed attachment from the error number and the driver's words.

use std::{fmt, io};

use aya::programs::{ProgramError, loaded_programs, xdp::XdpError};
use xdp_prog::abi::XDP_PROGRAM;

use super::{AttachError, READ, link_error};
use crate::{
    facts::{self, Interface, XdpMode},
    refusal::{Refusal, is_refusal},
};

/// The owner of an XDP program that occupies an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    pub interface: String,
    /// The kernel's id of the program.
    pub program: u32,
    /// The program's name, if this process may look it up (`CAP_SYS_ADMIN`).
    pub name: Option<String>,
    pub mode: XdpMode,
}

impl Owner {
    fn find(interface: &str) -> Option<Self> {
        let program = *facts::link(interface).ok()?.programs.first()?;
        Some(Self {
            interface: interface.to_owned(),
            program: program.id,
            name: program_name(program.id),
            mode: program.mode,
        })
    }

    fn remedy(&self) -> String {
        match self.name.as_deref() {
            Some("xdp_dispatcher") => format!(
                "it is libxdp's dispatcher; see `xdp-loader status {0}`, remove it with \
                 `xdp-loader unload {0} --all`",
                self.interface
            ),
            Some(name) if name.starts_with("cil_") => {
                "it is Cilium's; set its loadBalancer.acceleration to disabled".to_owned()
            }
            Some(name) if name.contains("cali") => {
                "it is Calico's; set xdpEnabled to false in its FelixConfiguration".to_owned()
            }
            Some(XDP_PROGRAM) => "it is an agent's with another pin directory; \
                 stop that one and run `guideway detach` with its directory"
                .to_owned(),
            _ => format!(
                "`bpftool net show dev {0}` says more; remove it (`ip link set dev {0} xdp off`, or unpin \
                 its link), or use another interface",
                self.interface
            ),
        }
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "XDP program {}", self.program)?;
        if let Some(name) = &self.name {
            write!(f, " ({name})")?;
        }
        write!(
            f,
            " is attached in {} mode and is left alone; {}",
            self.mode,
            self.remedy()
        )
    }
}

/// The obstacle that keeps a driver from running the program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Obstacle {
    pub kind: ObstacleKind,
    pub words: Option<String>,
    interface: String,
    driver: String,
}

/// The kinds of obstacles.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ObstacleKind {
    /// The driver runs no XDP programs.
    Driver,
    /// A VLAN interface runs no XDP programs; the interface below it may.
    Vlan,
    /// The MTU is too large.
    Mtu { mtu: u32 },
    /// The queues are too many or too few for XDP.
    Queues { receive: u32 },
    /// An offload feature excludes XDP.
    Offload,
    /// The driver's reason is not known here.
    Unknown,
}

impl Obstacle {
    fn of(device: &Interface, errno: i32, words: Option<String>) -> Self {
        Self {
            kind: kind(device, errno, words.as_deref().unwrap_or_default()),
            words,
            interface: device.name.clone(),
            driver: device
                .driver
                .clone()
                .unwrap_or_else(|| "unknown".to_owned()),
        }
    }
}

impl fmt::Display for Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            interface, driver, ..
        } = self;
        match &self.kind {
            ObstacleKind::Driver => write!(
                f,
                "driver {driver} does not run XDP programs in this mode; \
                 allow generic mode, or use another NIC"
            ),
            ObstacleKind::Vlan => f.write_str(
                "a VLAN interface has none of its own; attach to the interface below it, \
                 VLAN tags are understood there",
            ),
            ObstacleKind::Mtu { mtu } => write!(
                f,
                "MTU {mtu} is too large for driver {driver}; \
                 lower it (`ip link set dev {interface} mtu 1500`), or allow generic mode"
            ),
            ObstacleKind::Queues { receive } => write!(
                f,
                "driver {driver} has not the queues for it ({receive} receive queues in use); \
                 change them (`ethtool -L {interface} combined N`; most drivers want N to be at most \
                 half of the maximum and no more than the CPUs)"
            ),
            ObstacleKind::Offload => write!(
                f,
                "an offload of driver {driver} stands in the way; switch it off \
                 (`ethtool -K {interface} lro off rx-gro-hw off`)"
            ),
            ObstacleKind::Unknown => write!(
                f,
                "driver {driver} refuses; look for its reason in the kernel log, \
                 try MTU 1500 and fewer queues, or allow generic mode"
            ),
        }?;
        match &self.words {
            Some(words) => write!(f, " (the kernel says: {words})"),
            None => Ok(()),
        }
    }
}

/// Explains why an attachment failed.
pub(super) fn attach_error(
    device: &Interface,
    mode: XdpMode,
    error: ProgramError,
    words: Option<String>,
) -> AttachError {
    let source = match os_error(error) {
        Ok(source) => source,
        Err(error) => return link_error(device, READ)(error),
    };
    let interface = device.name.clone();
    if is_refusal(&source) {
        return AttachError::Refused {
            interface,
            refusal: Refusal::of_bpf(),
            source,
        };
    }
    let errno = source.raw_os_error().unwrap_or(0);
    if matches!(errno, libc::EBUSY | libc::EEXIST)
        && let Some(owner) = Owner::find(&interface)
    {
        return AttachError::Occupied {
            interface,
            owner,
            source,
        };
    }
    AttachError::Impossible {
        interface,
        mode,
        obstacle: Obstacle::of(device, errno, words),
        source,
    }
}

fn os_error(error: ProgramError) -> Result<io::Error, ProgramError> {
    match error {
        ProgramError::SyscallError(error) => Ok(error.io_error),
        ProgramError::XdpError(XdpError::NetlinkError(error)) => Ok(error
            .raw_os_error()
            .map_or_else(|| io::Error::other(error), io::Error::from_raw_os_error)),
        error => Err(error),
    }
}

/// Judges by words first: drivers agree on words far more than on error numbers.
fn kind(device: &Interface, errno: i32, words: &str) -> ObstacleKind {
    let words = words.to_lowercase();
    let says = |any: &[&str]| any.iter().any(|word| words.contains(word));
    let mtu = ObstacleKind::Mtu { mtu: device.mtu };
    let queues = ObstacleKind::Queues {
        receive: device.rx_queues,
    };
    if says(&["mtu", "jumbo", "frame size", "larger than"]) {
        mtu
    } else if says(&["queue", "channel", "ring"]) {
        queues
    } else if says(&[
        "lro",
        "gro",
        "rsc",
        "csum",
        "offload",
        "header split",
        "hds",
    ]) {
        ObstacleKind::Offload
    } else if errno == libc::EOPNOTSUPP && device.kind.as_deref() == Some("vlan") {
        ObstacleKind::Vlan
    } else if errno == libc::EOPNOTSUPP {
        ObstacleKind::Driver
    } else if errno == libc::ERANGE {
        mtu
    } else if errno == libc::ENOSPC {
        queues
    } else {
        ObstacleKind::Unknown
    }
}

pub(super) fn program_name(id: u32) -> Option<String> {
    loaded_programs()
        .filter_map(Result::ok)
        .find(|program| program.id() == id)
        .and_then(|program| program.name_as_str().map(ToOwned::to_owned))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::NativeXdp;

    fn device(driver: &str, mtu: u32) -> Interface {
        Interface {
            name: "eth0".into(),
            index: 2,
            up: true,
            mtu,
            mtu_max: None,
            kind: (driver == "vlan").then(|| driver.to_owned()),
            driver: Some(driver.to_owned()),
            lower: None,
            controller: None,
            rx_queues: 64,
            channels: None,
            features: None,
            native_xdp: NativeXdp::Unknown,
            programs: Vec::new(),
        }
    }

    #[test]
    fn words_of_real_drivers_lead_to_the_cause() {
        use ObstacleKind::{Mtu, Offload, Queues};
        let mtu = Mtu { mtu: 9000 };
        let queues = Queues { receive: 64 };
        // (error number, words as the driver puts them in Linux 6.12, cause)
        let cases = [
            (libc::ERANGE, "Peer MTU is too large to set XDP", &mtu),
            (
                libc::EINVAL,
                "MTU too large to enable XDP without frags",
                &mtu,
            ),
            (
                libc::EOPNOTSUPP,
                "Can't set XDP while host is implementing GRO_HW/CSUM, disable GRO_HW/CSUM first",
                &Offload,
            ),
            (
                libc::ENOSPC,
                "XDP expects number of rx queues not less than peer tx queues",
                &queues,
            ),
            (
                libc::EINVAL,
                "Failed to set xdp, the Rx/Tx channel count should be at most half of the maximum allowed channel count",
                &queues,
            ),
            (
                libc::EINVAL,
                "can't set XDP while LRO is on, disable LRO first",
                &Offload,
            ),
        ];
        for (errno, words, expected) in cases {
            let obstacle = Obstacle::of(&device("nic", 9000), errno, Some(words.into()));
            assert_eq!(&obstacle.kind, expected, "{words}");
            assert!(obstacle.to_string().contains(words), "{obstacle}");
        }
    }

    #[test]
    fn without_words_the_error_number_decides() {
        let kind = |driver, errno| Obstacle::of(&device(driver, 9000), errno, None).kind;
        assert_eq!(kind("e1000", libc::EOPNOTSUPP), ObstacleKind::Driver);
        assert_eq!(kind("vlan", libc::EOPNOTSUPP), ObstacleKind::Vlan);
        assert_eq!(kind("veth", libc::ERANGE), ObstacleKind::Mtu { mtu: 9000 });
        assert_eq!(kind("nic", libc::EINVAL), ObstacleKind::Unknown);
    }

    #[test]
    fn message_names_interface_cause_and_remedy() {
        let error = AttachError::Impossible {
            interface: "eth0".into(),
            mode: XdpMode::Native,
            obstacle: Obstacle::of(&device("ena", 9001), libc::ERANGE, None),
            source: io::Error::from_raw_os_error(libc::ERANGE),
        };
        assert_eq!(
            error.to_string(),
            "interface eth0: native XDP is not possible: MTU 9001 is too large for driver ena; \
             lower it (`ip link set dev eth0 mtu 1500`), or allow generic mode"
        );
    }

    #[test]
    fn known_owners_are_recognised_by_the_name_of_their_program() {
        let text = |name: Option<&str>| {
            Owner {
                interface: "eth0".into(),
                program: 7,
                name: name.map(ToOwned::to_owned),
                mode: XdpMode::Native,
            }
            .to_string()
        };
        assert!(text(Some("xdp_dispatcher")).contains("xdp-loader unload eth0"));
        assert!(text(Some("cil_xdp_entry")).contains("Cilium"));
        assert!(text(Some("guideway")).contains("another pin directory"));
        assert_eq!(
            text(None),
            "XDP program 7 is attached in native mode and is left alone; \
             `bpftool net show dev eth0` says more; remove it (`ip link set dev eth0 xdp off`, or unpin \
             its link), or use another interface"
        );
    }
}
