//! A map of AF_XDP sockets, and the program that leads frames to them.

use std::os::fd::{AsFd as _, AsRawFd};

use aya::maps::{Map, MapData, MapError, XskMap};
use aya_obj::{Map as Definition, generated::bpf_map_type::BPF_MAP_TYPE_XSKMAP};

/// The socket of an interface's queue 0.
pub(crate) struct Sockets {
    map: XskMap<MapData>,
    descriptor: i32,
}

impl Sockets {
    /// Creates the map with a socket in it.
    pub(crate) fn of(socket: impl AsRawFd) -> Result<Self, MapError> {
        let definition = Definition::new_from_params(BPF_MAP_TYPE_XSKMAP as u32, 4, 4, 1, 0);
        let data = MapData::create(definition, "sockets", None)?;
        let descriptor = data.fd().as_fd().as_raw_fd();
        let mut map = XskMap::try_from(Map::XskMap(data))?;
        map.set(0, socket, 0)?;
        Ok(Self { map, descriptor })
    }

    /// Returns the instructions of a program that puts `front` bytes before each frame and redirects it to the socket
    /// of its queue. Frames without a socket pass.
    pub(crate) fn redirect(&self, front: u8) -> Vec<u64> {
        const ADJUST_HEAD: u64 = 44;
        const REDIRECT_MAP: u64 = 51;
        const XDP_PASS: u64 = 2;
        let immediate = |value: i32| u64::from(value.cast_unsigned()) << 32;
        debug_assert_eq!(self.map.len(), 1);
        vec![
            0x16bf,                                // r6 = r1
            0x02b7 | immediate(-i32::from(front)), // r2 = -front
            0x85 | ADJUST_HEAD << 32,
            0x10_6261,                           // r2 = the queue's number
            0x1118 | immediate(self.descriptor), // r1 = the map
            0,                                   // (the upper half)
            0x03b7 | XDP_PASS << 32,             // r3
            0x85 | REDIRECT_MAP << 32,
            0x95, // exit
        ]
    }
}
