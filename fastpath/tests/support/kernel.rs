//! The second engine: the loaded object, run by `BPF_PROG_TEST_RUN`.
//!
//! The thread moves to a network namespace of its own first: its FIB has the
//! [`routes`] alone, and its loopback device is the one from which test runs
//! pretend that the frame came.

use std::{io, os::fd::AsFd as _};

use anyhow::Context as _;
use aya::{
    Ebpf, EbpfLoader, Pod,
    maps::{
        Array, HashMap, LpmTrie, Map, MapData, MapError, PerCpuArray, PerCpuValues, ProgramArray,
        lpm_trie::Key,
    },
    programs::{ProgramError, TestRun as _, TestRunOptions, Xdp},
    sys::SyscallError,
};
use fastpath::load::LoadError;
use xdp_prog::{
    abi::{
        self, AddressKey, Backend, Claim, Client, ClientBackend, Config, NAMESPACE_OWN,
        NAMESPACE_UNKNOWN, PastPair, PathReport, Pin, SlotPair, TaggedLink, Traffic, Tuple, map,
        namespace_of_id,
    },
    capture::Slot,
    process::Action,
    punt::{MENDED_PROGRAM, PuntHeader},
    reason::PuntReason,
    stage::Stage,
    wire::protocol,
};
use zerocopy::IntoBytes as _;

use super::{
    memory::Arrays,
    pod_sockets::PodSandbox,
    routes,
    tables::{Counts, TableSet, counted_reasons, forget_notes, of_each_cpu, size},
};

/// Index of the device that frames come in on: the namespace's loopback device.
pub(crate) const INGRESS: u32 = 1;
/// MAC of the device where mended frames come back.
pub(crate) const MENDED_MAC: [u8; 6] = [0x02, 0, 0, 0, 0, 0x0b];
/// Free bytes in front of a frame (`XDP_PACKET_HEADROOM`).
pub(crate) const HEADROOM: usize = 256;

/// The loaded program and its maps.
#[derive(Debug)]
pub(crate) struct Kernel {
    pub(crate) ebpf: Ebpf,
    arrays: Arrays,
    /// Contents that the tables have had.
    generation: u32,
    /// The namespace of the pods, if they have one.
    pods: Option<PodSandbox>,
}

impl Kernel {
    /// Loads the object, with maps of the sizes that the model has.
    pub(crate) fn load() -> anyhow::Result<Self> {
        // SAFETY: takes no pointers; no other thread runs yet.
        if unsafe { libc::unshare(libc::CLONE_NEWNET) } != 0 {
            return Err(io::Error::last_os_error())
                .context("moving to a network namespace of its own");
        }
        routes::install().context("installing routes")?;
        let mut loader = EbpfLoader::new();
        for (name, entries) in [
            (map::VIPS, size::HASH),
            (map::SERVICE_INDEX, size::BUCKETS),
            (map::SERVICE_OVERFLOW, size::HASH),
            (map::TRUSTED_EDGES, size::HASH),
            (map::EDGE_MACS, size::HASH),
            (map::PODS, size::HASH),
            (map::SOURCE_RANGES, size::HASH),
            (map::FLOWS, size::LRU),
            (map::FLOWS_DATAGRAM, size::LRU),
            (map::FLOWS_EMBRYONIC, size::LRU),
            (map::LOCAL_FLOWS, size::LRU),
            (map::PROBE_PEERS, size::LRU),
            (map::NAT_FORWARD, size::NAT),
            (map::NAT_REVERSE, size::NAT),
            (map::NAT_COUNTS, size::SERVICES),
            (map::NAT_BEGUN, size::NAT_BEGUN),
            (map::ANNOUNCED, size::HASH),
            (map::ANNOUNCE_LINKS, size::HASH),
            (map::CLAIMS, size::HASH),
            (map::PATHS, size::HASH),
            (map::FRAGMENTS, size::LRU),
            (map::ANSWERS, size::LRU),
            (map::SERVICE, size::SERVICES),
            (map::LUT, size::LUT),
            (map::PASTS, size::LUT),
            (map::HISTORY, size::HISTORY),
            (map::PINS, size::LRU),
            (map::PINS_YOUNG, size::LRU),
            (map::CLIENTS, size::LRU),
            (map::BACKENDS, size::BACKENDS),
            (map::NEXTHOPS, size::NEXT_HOPS),
        ]
        .into_iter()
        .chain(of_each_cpu())
        {
            loader.map_max_entries(name, entries);
        }
        let mut ebpf = loader
            .load(fastpath::object::bytes())
            .context("loading the object")?;
        let mut stages = Vec::new();
        for stage in Stage::ALL {
            let program = program(&mut ebpf, stage.program());
            program
                .load()
                .with_context(|| format!("loading {}", stage.program()))?;
            stages.push((stage.index(), program.fd()?.try_clone()?));
        }
        let mut array =
            ProgramArray::try_from(ebpf.map_mut(map::STAGES).expect("the object has this map"))?;
        for (index, fd) in &stages {
            array.set(*index, fd, 0)?;
        }
        for name in [abi::XDP_PROGRAM, MENDED_PROGRAM, Slot::Edge.program()] {
            let program = program(&mut ebpf, name);
            program.load().with_context(|| format!("loading {name}"))?;
        }
        let edge = program(&mut ebpf, Slot::Edge.program()).fd()?.try_clone()?;
        let capture = ebpf.map_mut(map::CAPTURE).expect("the object has this map");
        ProgramArray::try_from(capture)?.set(Slot::Edge.index(), &edge, 0)?;
        let arrays = Arrays::of(&ebpf)?;
        Ok(Self {
            ebpf,
            arrays,
            generation: 0,
            pods: None,
        })
    }

    /// Replaces the contents of all tables.
    pub(crate) fn install(&mut self, tables: &TableSet) -> anyhow::Result<()> {
        self.forget_notes()?;
        self.generation += 1;
        // The kernel frees an id some time after its namespace has gone, so each one has another.
        let namespace = self.generation;
        self.pods = match &tables.socket {
            Some(socket) => Some(PodSandbox::make(namespace, socket)?),
            None => None,
        };
        let config = Config {
            notes_generation: self.generation,
            ..tables.indexed_config()
        };
        let arrays = &self.arrays;
        arrays.write(map::CONFIG, &[config]);
        arrays.write(map::SERVICE, &tables.service);
        let pairs = tables.lut.as_chunks().0.iter().copied();
        arrays.write(map::LUT, &pairs.map(SlotPair).collect::<Vec<_>>());
        let pairs = tables.pasts.as_chunks().0.iter().copied();
        arrays.write(map::PASTS, &pairs.map(PastPair::new).collect::<Vec<_>>());
        arrays.write(map::HISTORY, &tables.history);
        arrays.write(map::BACKENDS, &backends_of(tables, namespace));
        arrays.write(map::NEXTHOPS, &tables.next_hops);
        arrays.write(map::ANNOUNCE_STAMP, &[tables.announce_stamp]);
        let (buckets, overflow) = tables.index();
        arrays.write(map::SERVICE_INDEX, &buckets);
        let [kept, young] = &tables.pins;
        self.fill_hash(map::PINS, kept)?;
        self.fill_hash(map::PINS_YOUNG, young)?;
        self.fill_hash(map::CLIENTS, &tables.clients)?;
        self.set_returns(tables.returns_full_at)?;
        let vlan = |(device, below, vlan)| (device, TaggedLink::new(below, vlan));
        self.fill_hash(map::VLANS, &routes::VLANS.map(vlan).into())?;
        self.fill_hash(map::VIPS, &tables.vips)?;
        self.fill_hash(map::SERVICE_OVERFLOW, &overflow)?;
        self.fill_hash(map::EDGE_MACS, &tables.edge_macs)?;
        self.fill_hash(map::PODS, &tables.pods)?;
        let mut tcp = tables.flows.clone();
        let is_datagram = |key: &Tuple| key.protocol() != protocol::TCP;
        let datagram = tcp.extract_if(|key, _| is_datagram(key)).collect();
        self.fill_hash(map::FLOWS, &tcp)?;
        self.fill_hash(map::FLOWS_DATAGRAM, &datagram)?;
        self.fill_hash(map::FLOWS_EMBRYONIC, &tables.embryonic)?;
        self.fill_hash(map::LOCAL_FLOWS, &tables.local_flows)?;
        for flow in tables.local_flows.keys() {
            let port = u16::from_be_bytes(flow.destination_port());
            let mut ports = Array::<_, u64>::try_from(self.map_mut(map::LOCAL_PORTS))?;
            ports.set(port.into(), u64::MAX, 0)?;
        }
        self.fill_hash(map::PROBE_PEERS, &tables.probe_peers)?;
        let nat = tables.nat.fresh();
        self.fill_hash(map::NAT_FORWARD, &nat.forward)?;
        self.fill_hash(map::NAT_REVERSE, &nat.reverse)?;
        self.fill_array(map::NAT_COUNTS, &tables.nat.counts)?;
        self.fill_array(map::NAT_BEGUN, &tables.nat.begun)?;
        self.fill_hash(map::ANNOUNCED, &tables.announced)?;
        self.fill_hash(map::ANNOUNCE_LINKS, &tables.announce_links)?;
        self.fill_hash(map::CLAIMS, &tables.claims)?;
        self.fill_hash(map::PATHS, &tables.paths)?;
        self.fill_hash(map::FRAGMENTS, &tables.datagrams)?;
        self.set_answers(&tables.answers, tables.answers_of_all)?;
        self.fill_trie(map::TRUSTED_EDGES, &tables.trusted)?;
        self.fill_trie(map::SOURCE_RANGES, &tables.source_ranges)?;
        Ok(())
    }

    /// Has the client of the pods' connection reset it, where a case says so.
    pub(crate) fn lose_socket(&mut self, tables: &TableSet) -> anyhow::Result<()> {
        let is_lost = tables.socket.is_some_and(|socket| socket.is_lost_at_last);
        if let Some(pods) = self.pods.as_mut().filter(|_| is_lost) {
            pods.reset().context("resetting the connection of a pod")?;
        }
        Ok(())
    }

    /// Forgets what is noted of flows that are there.
    pub(crate) fn forget_notes(&self) -> Result<(), MapError> {
        forget_notes(&self.ebpf, &self.arrays)
    }

    /// Runs the program once and returns the XDP action and the frame's bytes.
    pub(crate) fn run(&mut self, input: &[u8]) -> io::Result<(u32, Vec<u8>)> {
        self.run_program(abi::XDP_PROGRAM, input)
    }

    /// Runs the program of mended frames likewise, on one that came in by the same device.
    pub(crate) fn run_mended(&mut self, input: &[u8]) -> io::Result<(u32, Vec<u8>)> {
        let header = PuntHeader::new(INGRESS, PuntReason::Fragment as u16, 0).back_to(MENDED_MAC);
        self.run_program(MENDED_PROGRAM, &[header.as_bytes(), input].concat())
    }

    fn run_program(&mut self, name: &str, input: &[u8]) -> io::Result<(u32, Vec<u8>)> {
        let mut output = vec![0; input.len() + HEADROOM];
        let mut options = TestRunOptions::new();
        options.data_in = Some(input);
        options.data_out = Some(&mut output);
        match program(&mut self.ebpf, name).test_run(options) {
            Ok(result) => {
                output.truncate(result.data_size_out as usize);
                Ok((result.return_value, output))
            }
            Err(ProgramError::SyscallError(SyscallError { io_error, .. })) => Err(io_error),
            Err(error) => Err(io::Error::other(error)),
        }
    }

    /// Reads all counters, summed over the CPUs.
    pub(crate) fn counts(&self) -> Counts {
        let traffic = |name, of_cpu: u32| {
            let mut sums = vec![Traffic::default(); of_cpu as usize];
            let counted = self.arrays.read::<Traffic>(name);
            for (place, counted) in counted.into_iter().enumerate() {
                let sum = &mut sums[place % of_cpu as usize];
                sum.packets += counted.packets;
                sum.bytes += counted.bytes;
            }
            sums
        };
        Counts {
            reasons: counted_reasons(&self.arrays),
            services: traffic(map::SERVICE_TRAFFIC, size::SERVICES),
            backends: traffic(map::BACKEND_TRAFFIC, size::BACKENDS),
        }
    }

    /// Reads the MAC that each announced address is said to have elsewhere.
    pub(crate) fn claims(
        &self,
    ) -> Result<std::collections::HashMap<AddressKey, [u8; 6]>, MapError> {
        HashMap::<_, AddressKey, Claim>::try_from(self.map(map::CLAIMS))?
            .iter()
            .map(|entry| entry.map(|(address, claim)| (address, claim.mac())))
            .collect()
    }

    /// Reads what has been said of the paths to nodes.
    pub(crate) fn paths(
        &self,
    ) -> Result<std::collections::HashMap<AddressKey, PathReport>, MapError> {
        let paths = HashMap::<_, AddressKey, PathReport>::try_from(self.map(map::PATHS))?;
        paths
            .iter()
            .filter(|entry| !matches!(entry, Ok((_, report)) if !report.is_some()))
            .collect()
    }

    /// Replaces what sources have used of their allowances of answers, and all of them together.
    pub(crate) fn set_answers(
        &mut self,
        sources: &std::collections::HashMap<AddressKey, u64>,
        all: u64,
    ) -> Result<(), MapError> {
        self.fill_hash(map::ANSWERS, sources)?;
        let cpus = aya::util::nr_cpus().expect("readable /sys");
        let values = PerCpuValues::try_from(vec![all; cpus]).expect("one for each CPU");
        PerCpuArray::try_from(self.map_mut(map::ANSWERS_OF_CPU))?.set(0, values, 0)
    }

    /// Replaces what has been used of the allowance of flows whose owner is looked for.
    fn set_returns(&mut self, full_at: u64) -> Result<(), MapError> {
        let cpus = aya::util::nr_cpus().expect("readable /sys");
        let values = PerCpuValues::try_from(vec![full_at; cpus]).expect("one for each CPU");
        PerCpuArray::try_from(self.map_mut(map::RETURNS_OF_CPU))?.set(0, values, 0)
    }

    /// Reads the pins, the kept ones first.
    pub(crate) fn pins(&self) -> Result<[std::collections::HashMap<Tuple, Pin>; 2], MapError> {
        let read = |name| {
            let pins = HashMap::<_, Tuple, Pin>::try_from(self.map(name))?;
            pins.iter().collect::<Result<_, _>>()
        };
        Ok([read(map::PINS)?, read(map::PINS_YOUNG)?])
    }

    /// Reads the backends of clients' last new connections.
    pub(crate) fn clients(
        &self,
    ) -> Result<std::collections::HashMap<Client, ClientBackend>, MapError> {
        let clients = HashMap::<_, Client, ClientBackend>::try_from(self.map(map::CLIENTS))?;
        clients.iter().collect()
    }

    fn fill_array<V: Pod>(&mut self, name: &str, values: &[V]) -> Result<(), MapError> {
        let mut array = Array::<_, V>::try_from(self.map_mut(name))?;
        for (index, value) in (0..).zip(values) {
            array.set(index, value, 0)?;
        }
        Ok(())
    }

    fn fill_trie<P: Pod>(&mut self, name: &str, contents: &[(u32, P)]) -> Result<(), MapError> {
        let mut trie = LpmTrie::<_, P, u32>::try_from(self.map_mut(name))?;
        let stale = trie.keys().collect::<Result<Vec<_>, _>>()?;
        for key in stale {
            trie.remove(&key)?;
        }
        for (bits, prefix) in contents {
            trie.insert(&Key::new(*bits, *prefix), 1, 0)?;
        }
        Ok(())
    }

    fn fill_hash<K: Pod, V: Pod>(
        &mut self,
        name: &str,
        contents: &std::collections::HashMap<K, V>,
    ) -> Result<(), MapError> {
        let mut hash = HashMap::<_, K, V>::try_from(self.map_mut(name))?;
        let stale = hash.keys().collect::<Result<Vec<_>, _>>()?;
        for key in stale {
            hash.remove(&key)?;
        }
        for (key, value) in contents {
            hash.insert(key, value, 0)?;
        }
        Ok(())
    }

    /// Returns a new handle to a map.
    pub(crate) fn open(&self, name: &'static str) -> Result<MapData, LoadError> {
        let (Map::Array(data) | Map::HashMap(data) | Map::LpmTrie(data) | Map::LruHashMap(data)) =
            self.map(name)
        else {
            panic!("{name} is of another type");
        };
        let fd = data.fd().as_fd().try_clone_to_owned().unwrap();
        Ok(MapData::from_fd(fd).unwrap())
    }

    fn map(&self, name: &str) -> &Map {
        self.ebpf.map(name).expect("the object has this map")
    }

    fn map_mut(&mut self, name: &str) -> &mut Map {
        self.ebpf.map_mut(name).expect("the object has this map")
    }
}

/// The kernel's number of an action. Which device a redirect names, a test run does not tell.
pub(crate) fn action_code(action: Action) -> u32 {
    match action {
        Action::Drop => 1,
        Action::Pass => 2,
        Action::Transmit => 3,
        Action::Redirect(_) => 4,
        Action::Continue(_) => unreachable!("the host runner follows stages"),
    }
}

/// Returns the backends, with the id that the pods' namespace has got.
fn backends_of(tables: &TableSet, namespace: u32) -> Vec<Backend> {
    let mut backends = tables.backends.clone();
    for backend in &mut backends {
        if ![NAMESPACE_UNKNOWN, NAMESPACE_OWN].contains(&backend.namespace) {
            backend.namespace = namespace_of_id(namespace);
        }
    }
    backends
}

fn program<'e>(ebpf: &'e mut Ebpf, name: &str) -> &'e mut Xdp {
    ebpf.program_mut(name)
        .and_then(|program| program.try_into().ok())
        .expect("the object has this XDP program")
}
