//! Why a frame did not leave that XDP has sent: what the kernel's tracepoints tell.
//!
//! A program only names the device. Whether that takes the frame shows after the program has run, and nobody
//! tells the program. Two of the kernel's tracepoints are nothing but failures ([`TRACEPOINTS`]). The others that tell of some,
//! `xdp_devmap_xmit` and `xdp_bulk_tx`, come with every bulk of up to 16 frames, lost or not: programs there cost
//! some 50 ns each time, 2 % of an edge's plain path between veth devices, and so have none.

/// What tells of failures, each with the name of its program in the object.
///
/// Their arguments are no promise of the kernel's, but have been the same in Linux 6.1, 6.12 and 6.18
/// (`include/trace/events/xdp.h`; `btf_trace_xdp_*` in the BTF of a kernel).
pub const TRACEPOINTS: [(&str, &str); 2] = [
    ("xdp_redirect_err", "guideway_redirect_err"),
    ("xdp_exception", "guideway_exception"),
];

/// Why a frame did not leave; its number is the index into `FAILURES`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Failure {
    /// The device takes no frames from XDP: its driver cannot, or has no queues for them. A veth device does where
    /// its peer has a native program or GRO; before Linux 6.3, only `xdp_devmap_xmit` tells that it does not.
    Unsupported = 0,
    /// The device is down.
    DeviceDown = 1,
    /// There is no device of that number.
    NoDevice = 2,
    /// The frame is longer than the device's MTU allows.
    TooLong = 3,
    /// The driver could not send the frame back out of the device that it came in by: for want of room in the queue, mostly.
    Transmit = 4,
    /// Something else.
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

    /// Tells why a redirect failed by the error number that the kernel gives, negative as there.
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
