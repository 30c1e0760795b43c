//! What a thread of the whole edge computes for a packet, between receiving and sending: decide, rewrite, and move the
//! frame to the start of its buffer.
//!
//! The tables are the live ones, and frames lie in the caches. A batch is timed as a whole, without the copying of frames
//! into the buffers. Needs root.

use bench::datapath::{
    Family, Protocol,
    whole_edge::{Forwarder, Packets},
};
use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};

fn packets(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("whole_edge/packet");
    for (name, forwarder) in [("IPIP", Forwarder::Ipip), ("L2 DSR", Forwarder::L2Dsr)] {
        for family in Family::ALL {
            for flows in [10_000, 1] {
                let mut packets = Packets::new(forwarder, family, Protocol::Udp, flows)
                    .expect("root and a kernel that takes the tables");
                let id = BenchmarkId::new(
                    format!("{name}, {family:?}"),
                    format!("{flows} flows in random order"),
                );
                group.bench_function(id, |bencher| {
                    bencher.iter_custom(|count| packets.time(count));
                });
            }
        }
    }
    group.finish();
}

criterion_group!(benches, packets);
criterion_main!(benches);
