//! The second engine: the loaded object, run by `BPF_PROG_TEST_RUN`.

use std::collections::HashMap as Model;

use anyhow::Context as _;
use aya::{
    Ebpf, EbpfLoader, Pod,
    maps::{Array, HashMap, Map, MapError},
    programs::{SchedClassifier, TestRun as _, TestRunOptions},
};
use fastpath::clock::coarse_ns;
use xdp_prog::{
    abi::{self, AddressKey, Datagram, LocalFlow, PodFlow, Tuple, egress_port, map},
    wire::protocol,
    world::FlowTable,
};

use super::{
    cases::{Case, Outcome, Remembered, lifetimes, ports_of, timeless},
    support::{
        memory::Arrays,
        tables::{counted_reasons, forget_notes, of_each_cpu, size},
    },
};

/// Size of `struct __sk_buff` up to Linux 6.18, and the offset of its mark.
const CONTEXT: usize = 192;
const MARK: usize = 8;
/// Longest outer header.
const OUTER: usize = 40;
/// `TC_ACT_UNSPEC`: the next program decides.
const UNSPEC: u32 = u32::MAX;

/// The loaded program and its maps.
pub(crate) struct Kernel {
    ebpf: Ebpf,
    arrays: Arrays,
}

impl Kernel {
    /// Loads the object, with small maps.
    pub(crate) fn load() -> anyhow::Result<Self> {
        let mut loader = EbpfLoader::new();
        for (name, entries) in [
            (map::SERVICE_INDEX, size::BUCKETS),
            (map::SERVICE, size::SERVICES),
            (map::LUT, size::LUT),
            (map::BACKENDS, size::BACKENDS),
            (map::NEXTHOPS, size::NEXT_HOPS),
            (map::FLOWS, size::LRU),
            (map::FLOWS_DATAGRAM, size::LRU),
            (map::FLOWS_EMBRYONIC, size::LRU),
            (map::LOCAL_FLOWS, size::LRU),
            (map::FRAGMENTS, size::LRU),
            (map::PROBES, size::HASH),
            (map::PROBE_PEERS, size::LRU),
        ]
        .into_iter()
        .chain(of_each_cpu())
        {
            loader.map_max_entries(name, entries);
        }
        let mut ebpf = loader
            .load(fastpath::object::bytes())
            .context("loading the object")?;
        program(&mut ebpf).load().context("loading the program")?;
        let arrays = Arrays::of(&ebpf)?;
        Ok(Self { ebpf, arrays })
    }

    /// Takes a case's frames through the program.
    pub(crate) fn run(&mut self, case: &Case) -> anyhow::Result<Outcome> {
        let now = coarse_ns();
        let tables = &case.tables;
        let arrays = &self.arrays;
        forget_notes(&self.ebpf, arrays)?;
        arrays.write(map::CONFIG, &[tables.set.indexed_config()]);
        arrays.write(map::SERVICE, &tables.set.service);
        let (buckets, overflow) = tables.set.index();
        arrays.write(map::SERVICE_INDEX, &buckets);
        let mut ports = [0; abi::size::EGRESS_PORTS];
        for port in &tables.egress_ports {
            let (index, bit) = egress_port(*port);
            ports[index as usize] |= bit;
        }
        arrays.write(map::EGRESS_PORTS, &ports);
        self.hash(map::SERVICE_OVERFLOW, &overflow.into_iter().collect())?;
        let mut answered = tables.flows_at(FlowTable::Established, now);
        let datagram = answered.extract_if(|key, _| !is_tcp(key)).collect();
        self.hash(map::FLOWS, &answered)?;
        self.hash(map::FLOWS_DATAGRAM, &datagram)?;
        self.hash(
            map::FLOWS_EMBRYONIC,
            &tables.flows_at(FlowTable::Embryonic, now),
        )?;
        self.hash(map::FRAGMENTS, &tables.datagrams_at(now))?;
        for (port, _) in self.local_flows()? {
            Array::<_, u64>::try_from(self.map_mut(map::LOCAL_PORTS))?.set(port, 0, 0)?;
        }
        self.hash::<Tuple, LocalFlow>(map::LOCAL_FLOWS, &Model::new())?;
        self.array(map::PROBES, &tables.probes)?;
        self.hash::<Tuple, AddressKey>(map::PROBE_PEERS, &Model::new())?;
        for frame in &case.earlier {
            self.send(frame, 0)?;
        }
        let before = counted_reasons(&self.arrays);
        let (action, bytes) = self.send(&case.input, case.mark)?;
        for (port, flow) in self.local_flows()? {
            let ports = Array::<_, u64>::try_from(self.ebpf.map(map::LOCAL_PORTS).unwrap())?;
            assert!(
                ports.get(&port, 0)? >= flow.until(),
                "port {port} is not asked"
            );
        }
        let reasons = counted_reasons(&self.arrays)
            .into_iter()
            .zip(before)
            .map(|(now, then)| now - then);
        Ok(Outcome {
            goes_on: action == UNSPEC,
            bytes,
            reasons: reasons.collect(),
            remembered: Remembered {
                answered: timeless(&self.answered()?),
                embryonic: timeless(&self.read::<Tuple, PodFlow>(map::FLOWS_EMBRYONIC)?),
                datagrams: ports_of(&self.read::<Tuple, Datagram>(map::FRAGMENTS)?),
                local: lifetimes(
                    &self.read::<Tuple, LocalFlow>(map::LOCAL_FLOWS)?,
                    coarse_ns(),
                ),
                peers: self.read(map::PROBE_PEERS)?,
            },
        })
    }

    fn send(&mut self, input: &[u8], mark: u32) -> anyhow::Result<(u32, Vec<u8>)> {
        let mut output = vec![0; input.len() + OUTER];
        let mut context = [0; CONTEXT];
        context[MARK..MARK + 4].copy_from_slice(&mark.to_ne_bytes());
        let mut options = TestRunOptions::new();
        options.ctx_in = Some(&context);
        options.data_in = Some(input);
        options.data_out = Some(&mut output);
        let result = program(&mut self.ebpf)
            .test_run(options)
            .with_context(|| format!("running a frame of {} bytes", input.len()))?;
        output.truncate(result.data_size_out as usize);
        Ok((result.return_value, output))
    }

    fn array<V: Pod>(&mut self, name: &str, values: &[V]) -> Result<(), MapError> {
        let mut array = Array::<_, V>::try_from(self.map_mut(name))?;
        for (index, value) in (0..).zip(values) {
            array.set(index, value, 0)?;
        }
        Ok(())
    }

    fn hash<K: Pod, V: Pod>(&mut self, name: &str, contents: &Model<K, V>) -> Result<(), MapError> {
        let mut hash = HashMap::<_, K, V>::try_from(self.map_mut(name))?;
        for key in hash.keys().collect::<Result<Vec<_>, _>>()? {
            hash.remove(&key)?;
        }
        for (key, value) in contents {
            hash.insert(key, value, 0)?;
        }
        Ok(())
    }

    /// Reads the flows that pods have answered, each of which must be in the map of its protocol.
    fn answered(&self) -> Result<Model<Tuple, PodFlow>, MapError> {
        let mut tcp = self.read(map::FLOWS)?;
        let others = self.read(map::FLOWS_DATAGRAM)?;
        assert!(tcp.keys().all(is_tcp) && !others.keys().any(is_tcp));
        tcp.extend(others);
        Ok(tcp)
    }

    /// Lists the flows of the kernel, each with its port of this machine.
    fn local_flows(&self) -> Result<Vec<(u32, LocalFlow)>, MapError> {
        let flows = self.read::<Tuple, LocalFlow>(map::LOCAL_FLOWS)?;
        let port = |key: Tuple| u16::from_be_bytes(key.destination_port()).into();
        Ok(flows
            .into_iter()
            .map(|(key, flow)| (port(key), flow))
            .collect())
    }

    fn read<K: Pod + Eq + std::hash::Hash, V: Pod>(
        &self,
        name: &str,
    ) -> Result<Model<K, V>, MapError> {
        HashMap::<_, K, V>::try_from(self.ebpf.map(name).unwrap())?
            .iter()
            .collect()
    }

    fn map_mut(&mut self, name: &str) -> &mut Map {
        self.ebpf.map_mut(name).unwrap()
    }
}

fn is_tcp(key: &Tuple) -> bool {
    key.protocol() == protocol::TCP
}

fn program(ebpf: &mut Ebpf) -> &mut SchedClassifier {
    ebpf.program_mut(abi::EGRESS_PROGRAM)
        .and_then(|program| program.try_into().ok())
        .expect("the object has this program")
}
