//! The way of mended frames back, and kernels that have no sockets for it.

use std::{collections::BTreeSet, time::Duration};

use fastpath::{
    attach,
    load::{Loaded, Loader},
    mend::{self, Limits, MENDED_END, Mend, Queue},
    pins::Pins,
};
use lab::{Namespace, Veth};
use xdp_prog::abi::map;

const TIMEOUT: Duration = Duration::from_secs(60);

fn start(loaded: &mut Loaded) -> Mend {
    Mend::start(loaded, Limits::default()).unwrap()
}

fn small(loader: Loader) -> Loader {
    loader
        .max_entries(map::LUT, 4096)
        .max_entries(map::BACKENDS, 64)
        .max_entries(map::BACKEND_TRAFFIC, 64)
}

/// A pin directory of this test's own, removed with everything in it.
struct TestPins(Pins);

impl Drop for TestPins {
    fn drop(&mut self) {
        let removed = self.0.remove_all();
        if !std::thread::panicking() {
            removed.unwrap();
        }
    }
}

#[test]
fn kernel_without_af_xdp_loads_everything_else() {
    let directory = format!("/sys/fs/bpf/guideway-test-{}-mend", std::process::id());
    let pins = TestPins(Pins::new(directory));
    let (near, far) = (
        Namespace::new("near").unwrap(),
        Namespace::new("far").unwrap(),
    );
    let (near_end, _far_end) = Veth::between((&near, "near0"), (&far, "far0"))
        .create()
        .unwrap();
    near.run(|| {
        // The second one adopts what the first one has pinned.
        for adopts in [false, true] {
            let loader = small(Loader::pinned(pins.0.clone())).without_af_xdp();
            let mut loaded = loader.load().unwrap();
            let options = attach::Options::default();
            let attachment = loaded.attach(near_end.name(), &options).unwrap();
            assert_eq!(attachment.replaced.is_some(), adopts);
        }
        pins.0.detach(near_end.name()).unwrap();
    });
}

#[test]
fn queues_are_followed_and_the_pair_stays_until_it_is_removed() {
    let (near, far) = (
        Namespace::new("near").unwrap(),
        Namespace::new("far").unwrap(),
    );
    let (near_end, _far_end) = Veth::between((&near, "near0"), (&far, "far0"))
        .queues(2)
        .create()
        .unwrap();
    let queues = |numbers: &[u32]| -> BTreeSet<Queue> {
        let queue = |queue: &u32| Queue {
            interface: near_end.name().to_owned(),
            device: near_end.index(),
            queue: *queue,
        };
        numbers.iter().map(queue).collect()
    };
    near.run(|| {
        assert!(!mend::remove_pair().unwrap());
        let mut loaded = small(Loader::unpinned()).load().unwrap();
        let mend = start(&mut loaded);
        let pair = near.link(MENDED_END).unwrap().index();
        let wait_for = |mend: &Mend, open: usize, problem: &str| {
            lab::wait_until("the queues are followed", TIMEOUT, || {
                let queues = mend.reader().queues();
                let mut problems = queues.problems.iter().map(ToString::to_string);
                let is_as_told = if problem.is_empty() {
                    queues.wanted == queues.open
                } else {
                    problems.any(|told| told.contains(problem))
                };
                // That of the pair is open too.
                queues.open == open + 1 && is_as_told
            })
            .unwrap();
        };
        mend.follow(queues(&[0, 1]));
        wait_for(&mend, 2, "");
        mend.follow(queues(&[0, 7]));
        wait_for(&mend, 1, "no queue 7");
        mend.follow(queues(&[1]));
        wait_for(&mend, 1, "");
        // The next one gets the queue and the pair.
        drop(mend);
        loaded.detach_mended();
        drop(loaded);
        let mut loaded = small(Loader::unpinned()).load().unwrap();
        let mend = start(&mut loaded);
        mend.follow(queues(&[0, 1]));
        wait_for(&mend, 2, "");
        assert_eq!(near.link(MENDED_END).unwrap().index(), pair);
        drop(mend);
        assert!(mend::remove_pair().unwrap());
        assert!(near.link(MENDED_END).is_err());
        assert!(!mend::remove_pair().unwrap());
    });
}
