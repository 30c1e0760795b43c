//! Reasons why the kernel did not send a frame that XDP handed to it.
//!
//! A program only names the device. The kernel learns after the program has run whether the device takes the frame,
//! and it tells tracepoints alone. Programs at two tracepoints that fire only for failures ([`TRACEPOINTS`]) count
//! them. `xdp_devmap_xmit` and `xdp_bulk_tx` tell of more failures, but they fire for every bulk of up to 16 frames.
//! A program there costs some 50 ns each time, 2 % of an edge's plain path between veth devices, so they have none.

/// Tracepoints that report failures, each with the name of its program in the object.
///
/// The kernel does not promise their arguments, but these are the same in Linux 6.1, 6.12 and 6.18
/// (`include/trace/events/xdp.h`; `btf_trace_xdp_*` in a kernel's BTF).
pub const TRACEPOINTS: [(&str, &str); 2] = [
    ("xdp_redirect_err", "guideway_redirect_err"),
    ("xdp_exception", "guideway_exception"),
];

/// Reason why a frame was not sent; its number is the index into `FAILURES`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Failure {
    /// The device takes no frames from XDP: its driver does not support it or has no queues for it. A veth device
    /// takes frames only if its peer has a native program or GRO. Before Linux 6.3, only `xdp_devmap_xmit` reports
    /// this.
    Unsupported = 0,
    /// The device is down.
    DeviceDown = 1,
    /// No device has this interface index.
    NoDevice = 2,
    /// The frame is longer than the device's MTU allows.
    TooLong = 3,
    /// The driver could not send the frame back by its ingress device, mostly because the queue was full.
    Transmit = 4,
    /// Any other error.
    Other = 5,
}

impl Failure {
    /// Every cause, in the order of the counters.
    pub const ALL: [Self; 6] = [
        Self::Unsupported,
        Self::DeviceDown,
        Self::NoDevice,
        Self::TooLong,
        Self::Transmit,
        Self::Other,
    ];

    /// Returns the index into the `FAILURES` counters.
    #[inline(always)]
    pub const fn index(self) -> u32 {
        self as u32
    }

    /// Returns the metric label.
    pub const fn label(self) -> &'static str {
        match self {
            Self::Unsupported => "unsupported",
            Self::DeviceDown => "device_down",
            Self::NoDevice => "no_device",
            Self::TooLong => "too_long",
            Self::Transmit => "transmit",
            Self::Other => "other",
        }
    }

    /// Maps the kernel's error number of a redirect, which is negative, to its reason.
    #[inline(always)]
    pub const fn of_redirect(error: i32) -> Self {
        const EINVAL: i32 = 22;
        const EMSGSIZE: i32 = 90;
        const EOPNOTSUPP: i32 = 95;
        const ENETDOWN: i32 = 100;
        match error.wrapping_neg() {
            EOPNOTSUPP => Self::Unsupported,
            ENETDOWN => Self::DeviceDown,
            EINVAL => Self::NoDevice,
            EMSGSIZE => Self::TooLong,
            _ => Self::Other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn causes_are_numbered_in_their_order() {
        for (index, failure) in (0..).zip(Failure::ALL) {
            assert_eq!(failure.index(), index, "{failure:?}");
        }
    }

    #[test]
    fn error_numbers_of_the_kernel_tell_the_cause() {
        for (error, label) in [
            (-95, "unsupported"),
            (-100, "device_down"),
            (-22, "no_device"),
            (-90, "too_long"),
            (-1, "other"),
            (0, "other"),
            (i32::MIN, "other"),
        ] {
            assert_eq!(Failure::of_redirect(error).label(), label, "{error}");
        }
    }
}
