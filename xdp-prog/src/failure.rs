//! Why a frame did not leave that XDP has sent: what the kernel's tracepoints tell.
//!
//! A program only names the device. Whether that takes the frame shows after the program has run, and nobody
//! tells the program: see [`TRACEPOINTS`].

/// What tells of failures, each with the name of its program in the object.
///
/// Their arguments are no promise of the kernel's, but have been the same in Linux 6.1, 6.12 and 6.18
/// (`include/trace/events/xdp.h`; `btf_trace_xdp_*` in the BTF of a kernel).
pub const TRACEPOINTS: [(&str, &str); 4] = [
    ("xdp_redirect_err", "guideway_redirect_err"),
    ("xdp_devmap_xmit", "guideway_devmap_xmit"),
    ("xdp_bulk_tx", "guideway_bulk_tx"),
    ("xdp_exception", "guideway_exception"),
];

/// Why a frame did not leave; its number is the index into `FAILURES`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Failure {
    /// The device takes no frames from XDP: its driver cannot, or its queues for them are not there. A veth device takes
    /// them where its peer has a native program or GRO.
    Unsupported = 0,
    /// The device is down.
    DeviceDown = 1,
    /// There is no device of that number.
    NoDevice = 2,
    /// The frame is longer than the device's MTU allows.
    TooLong = 3,
    /// The device's queue is full.
    QueueFull = 4,
    /// Something else, or the driver does not tell.
    Other = 5,
}

impl Failure {
    /// Every cause, in the order of the counters.
    pub const ALL: [Self; 6] = [
        Self::Unsupported,
        Self::DeviceDown,
        Self::NoDevice,
        Self::TooLong,
        Self::QueueFull,
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
            Self::QueueFull => "queue_full",
            Self::Other => "other",
        }
    }

    /// Tells the cause by the error number that the kernel gives, negative as there.
    ///
    /// None (0) is what a driver gives that took some frames of a bulk and had no room for the rest.
    #[inline(always)]
    pub const fn of_error(error: i32) -> Self {
        const ENXIO: i32 = 6;
        const EBUSY: i32 = 16;
        const ENODEV: i32 = 19;
        const EINVAL: i32 = 22;
        const ENOSPC: i32 = 28;
        const EMSGSIZE: i32 = 90;
        const EOPNOTSUPP: i32 = 95;
        const ENETDOWN: i32 = 100;
        match error.wrapping_neg() {
            0 | EBUSY | ENOSPC => Self::QueueFull,
            // The former is what drivers say that have no queue for such frames.
            ENXIO | EOPNOTSUPP => Self::Unsupported,
            ENETDOWN => Self::DeviceDown,
            // The former is what a redirect to an unknown number comes to.
            EINVAL | ENODEV => Self::NoDevice,
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
            (0, "queue_full"),
            (-28, "queue_full"),
            (-95, "unsupported"),
            (-6, "unsupported"),
            (-100, "device_down"),
            (-22, "no_device"),
            (-90, "too_long"),
            (-1, "other"),
            (i32::MIN, "other"),
        ] {
            assert_eq!(Failure::of_error(error).label(), label, "{error}");
        }
    }
}
