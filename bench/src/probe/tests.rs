use super::*;

const MARKS: Key = Key([7; 16]);
const BACKENDS: [u16; 3] = [0, 1, 2];

fn ledger() -> Ledger {
    Ledger::new(Key([1; 16]), MARKS, &BACKENDS.map(Some))
}

fn answer(probe: [u8; PROBE_LENGTH], backend: u16) -> Vec<u8> {
    [&probe[..], &MARKS.mark(&probe, backend), &[0, 0]].concat()
}

/// Sends `count` probes in turn over the flows and returns their answers, in order.
fn answers(ledger: &mut Ledger, count: u32) -> Vec<Vec<u8>> {
    (0..count)
        .map(|number| {
            let flow = number % 3;
            let probe = ledger.prepare(flow, u64::from(number) * 1_000_003);
            answer(probe, BACKENDS[flow as usize])
        })
        .collect()
}

#[test]
fn a_probe_fits_the_payload_of_the_shortest_udp_frame() {
    let headers_and_fcs = 14 + 20 + 8 + 4;
    assert!(headers_and_fcs + PROBE_LENGTH <= 64);
}

#[test]
fn what_comes_back_once_intact_and_in_order_is_received_and_nothing_else() {
    let mut ledger = ledger();
    for (index, answer) in answers(&mut ledger, 300).iter().enumerate() {
        let backend = BACKENDS[index % 3];
        let expected = Arrival::Received { index, backend };
        assert_eq!(ledger.arrive(answer), expected);
    }
    let expected = Tally {
        offered: 300,
        sent: 300,
        received: 300,
        ..Tally::default()
    };
    assert_eq!(ledger.close(&[]), expected);
}

#[test]
fn each_impairment_is_counted_exactly_and_alone() {
    let mut ledger = ledger();
    let mut answers = answers(&mut ledger, 3_000);
    // Places far from each other: each impairment hits its own probes.
    let (lost, doubled, damaged, swapped) = (3..10, 100..123, 200..231, [600, 603, 900, 903]);
    let mut late = Vec::new();
    for index in doubled.clone() {
        late.push(answers[index].clone());
    }
    for (bit, answer) in answers[damaged.clone()].iter_mut().enumerate() {
        answer[(bit * 37 % 192) / 8] ^= 1 << (bit % 8);
    }
    answers.swap(swapped[0], swapped[1]);
    answers.swap(swapped[2], swapped[3]);
    let misdelivered = 1_000..1_017;
    for answer in &mut answers[misdelivered.clone()] {
        let probe = *answer.first_chunk().unwrap();
        *answer = super::tests::answer(probe, 9);
    }
    for (index, answer) in answers.iter().enumerate() {
        if !lost.contains(&index) {
            ledger.arrive(answer);
        }
    }
    for answer in &late {
        assert_eq!(ledger.arrive(answer), Arrival::Duplicate);
    }
    let expected = Tally {
        offered: 3_000,
        sent: 3_000,
        received: 3_000 - lost.len() as u64 - damaged.len() as u64,
        lost: lost.len() as u64,
        duplicates: doubled.len() as u64,
        reordered: 2,
        corrupt: damaged.len() as u64,
        misdelivered: misdelivered.len() as u64,
        foreign: 0,
    };
    assert_eq!(ledger.close(&[]), expected);
}

#[test]
fn every_changed_bit_of_an_answer_is_corruption() {
    let mut ledger = ledger();
    let [sent] = answers(&mut ledger, 1).try_into().unwrap();
    for bit in 0..sent.len() * 8 {
        let mut changed = sent.clone();
        changed[bit / 8] ^= 1 << (bit % 8);
        assert_eq!(ledger.arrive(&changed), Arrival::Corrupt, "bit {bit}");
    }
    // The probe itself was not lost: copies of it came.
    assert_eq!(ledger.close(&[]).lost, 0);
}

#[test]
fn foreign_frames_and_those_of_an_earlier_trial_are_not_counted() {
    let mut ledger = ledger();
    answers(&mut ledger, 1_000);
    let mut earlier = Ledger::new(Key([2; 16]), MARKS, &BACKENDS.map(Some));
    let replayed = answers(&mut earlier, 1_000);
    let mut random = crate::stats::SplitMix64::new(5);
    for replay in &replayed {
        // The same flow and the same number, due at another time.
        let mut replay = replay.clone();
        replay[8] ^= 1;
        assert_eq!(ledger.arrive(&replay), Arrival::Foreign);
        let noise: Vec<u8> = (0..24).map(|_| random.next().to_be_bytes()[0]).collect();
        assert_eq!(ledger.arrive(&noise), Arrival::Foreign);
        assert_eq!(ledger.arrive(&noise[..11]), Arrival::Foreign);
    }
    let tally = ledger.close(&[]);
    assert_eq!((tally.received, tally.lost), (0, 1_000));
    assert_eq!((tally.foreign, tally.corrupt), (3_000, 0));
}

#[test]
fn due_times_are_carried_modulo_40_bits() {
    let mut ledger = ledger();
    let probe = ledger.prepare(1, 0x0012_3456_789a_bcde);
    assert_eq!(
        probe[..12],
        [0, 0, 1, 0, 0, 0, 0, 0x56, 0x78, 0x9a, 0xbc, 0xde]
    );
}

#[test]
fn what_was_not_sent_is_not_lost() {
    let mut ledger = ledger();
    let answers = answers(&mut ledger, 10);
    for answer in &answers[..4] {
        ledger.arrive(answer);
    }
    let tally = ledger.close(&[8, 9]);
    assert_eq!((tally.offered, tally.sent), (10, 8));
    assert_eq!((tally.received, tally.lost), (4, 4));
}
