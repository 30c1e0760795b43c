//! How long one thread takes to fill a Maglev table.

use std::{
    hint::black_box,
    net::{IpAddr, Ipv4Addr},
};

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use xdp_prog::maglev::{Identity, Member, Scratch, Turn, populate};

fn fill(c: &mut Criterion) {
    let mut group = c.benchmark_group("maglev/fill");
    for (log2_len, members) in [(14, 100), (16, 100), (16, 1000), (20, 100)] {
        let equal = backends(members, |_| 1);
        bench(&mut group, "equal", log2_len, &equal);
    }
    let mixed = backends(100, |n| n * 37 % 100 + 1);
    bench(&mut group, "weights 1-100", 16, &mixed);
    group.finish();
}

fn bench(
    group: &mut criterion::BenchmarkGroup<'_, criterion::measurement::WallTime>,
    name: &str,
    log2_len: u8,
    members: &[Member],
) {
    let len = 1_usize << log2_len;
    let mut table = vec![0; len];
    let mut turns = vec![Turn::default(); members.len()];
    let mut taken = vec![0; len.div_ceil(64)];
    let mut seed = 0;
    let id = BenchmarkId::new(
        format!("{name}, {} backends", members.len()),
        format!("{len} slots"),
    );
    group.bench_function(id, |b| {
        b.iter(|| {
            // Another seed is another table: the branch predictor learns none.
            seed += 1;
            let scratch = Scratch {
                turns: &mut turns,
                taken: &mut taken,
            };
            populate(seed, black_box(members), &mut table, scratch).expect("a valid set");
            black_box(&table);
        });
    });
}

fn backends(count: u32, weight: impl Fn(u32) -> u32) -> Vec<Member> {
    (0..count)
        .map(|n| Member {
            identity: Identity::new(IpAddr::V4(Ipv4Addr::from_bits(0x0a00_0001 + n)), 80),
            weight: weight(n),
        })
        .collect()
}

criterion_group!(benches, fill);
criterion_main!(benches);
