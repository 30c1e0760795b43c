use std::thread;

use rustix::net::{SocketFlags, SocketType, socketpair};

use super::*;
use crate::netlink::NLM_F_DUMP;

const ENTRY: u16 = 16;

/// One message of the kernel's: kind, flags, body.
type Part = (u16, u16, Vec<u8>);

/// Connects to a kernel that answers each request with the next of these lists of datagrams.
fn connected(answers: Vec<Vec<Vec<Part>>>) -> Connection {
    let (ours, kernel) = socketpair(
        AddressFamily::UNIX,
        SocketType::DGRAM,
        SocketFlags::CLOEXEC,
        None,
    )
    .unwrap();
    thread::spawn(move || {
        for answer in answers {
            let mut request = [0; 64];
            let (length, _) = recv(&kernel, &mut request, RecvFlags::empty()).unwrap();
            let sequence = messages(&request[..length]).next().unwrap().sequence;
            for datagram in answer {
                let bytes: Vec<u8> = datagram
                    .iter()
                    .flat_map(|(kind, flags, body)| message(*kind, *flags, sequence, body))
                    .collect();
                send(&kernel, &bytes, SendFlags::empty()).unwrap();
            }
        }
    });
    Connection::over(ours).unwrap()
}

fn message(kind: u16, flags: u16, sequence: u32, body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(MESSAGE_HEADER + body.len()).unwrap();
    let mut bytes = length.to_ne_bytes().to_vec();
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(flags.to_ne_bytes());
    bytes.extend(sequence.to_ne_bytes());
    bytes.extend([0; 4]);
    bytes.extend(body);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

fn entry(flags: u16, body: u8) -> Part {
    (ENTRY, NLM_F_MULTI | flags, vec![body; 4])
}

fn done(flags: u16, code: i32) -> Part {
    (NLMSG_DONE, NLM_F_MULTI | flags, code.to_ne_bytes().to_vec())
}

fn dump() -> Request {
    Request::new(18, NLM_F_ACK | NLM_F_DUMP, &[0u8; 4])
}

#[test]
fn list_that_changed_while_it_was_told_is_asked_for_again() {
    let whole = vec![
        vec![entry(0, 1), entry(0, 2)],
        vec![entry(0, 3)],
        vec![done(0, 0)],
    ];
    for flagged in 0..2 {
        let flags = |place| if place == flagged { NLM_F_DUMP_INTR } else { 0 };
        // The second entry slipped through.
        let torn = vec![
            vec![entry(0, 1), entry(flags(0), 3)],
            vec![done(flags(1), 0)],
        ];
        let mut kernel = connected(vec![torn, whole.clone()]);
        let told = kernel.ask(dump()).unwrap();
        assert_eq!(told, [vec![1; 4], vec![2; 4], vec![3; 4]]);
    }
}

#[test]
fn list_whose_entries_are_not_marked_as_parts_is_read_to_its_end() {
    let bare = |body| (ENTRY, 0, vec![body; 4]);
    let answer = vec![vec![bare(1)], vec![bare(2), bare(3)], vec![done(0, 0)]];
    let request = Request::new(18, NLM_F_DUMP, &[0u8; 4]);
    let told = connected(vec![answer]).ask(request).unwrap();
    assert_eq!(told, [vec![1; 4], vec![2; 4], vec![3; 4]]);
}

#[test]
fn list_that_never_keeps_still_is_an_error() {
    let torn = vec![vec![entry(NLM_F_DUMP_INTR, 1)], vec![done(0, 0)]];
    let tries = usize::try_from(DUMP_TRIES).unwrap();
    let error = connected(vec![torn; tries]).ask(dump()).unwrap_err();
    assert!(
        matches!(error, RequestError::Changing { tries: DUMP_TRIES }),
        "{error}"
    );
}

#[test]
fn list_that_ends_with_an_error_is_no_list() {
    let cut = vec![vec![entry(0, 1)], vec![done(0, -libc::ENOMEM)]];
    let error = connected(vec![cut]).ask(dump()).unwrap_err();
    assert_eq!(error.errno(), Some(libc::ENOMEM));
    let (kind, flags, mut body) = done(0, -libc::EMSGSIZE);
    body.extend(run(&[(NLMSGERR_ATTR_MSG, &text("too long"))]));
    let explained = vec![vec![(kind, flags, body)]];
    let error = connected(vec![explained]).ask(dump()).unwrap_err();
    assert_eq!(error.to_string(), "the kernel refused: too long");
}

#[test]
fn list_without_an_end_is_an_error() {
    let (kind, flags, _) = done(0, 0);
    let headless = vec![vec![(kind, flags, vec![0, 0])]];
    let error = connected(vec![headless]).ask(dump()).unwrap_err();
    assert!(matches!(error, RequestError::Malformed), "{error}");
}

#[test]
fn datagram_that_is_cut_is_an_error_once_the_list_is_read() {
    let long = vec![entry(0, 1); BUFFER_LENGTH / 20 + 1];
    let mut kernel = connected(vec![
        vec![long, vec![done(0, 0)]],
        vec![vec![entry(0, 1)], vec![done(0, 0)]],
    ]);
    let error = kernel.ask(dump()).unwrap_err();
    assert!(matches!(error, RequestError::Socket(_)), "{error}");
    assert_eq!(kernel.ask(dump()).unwrap(), [vec![1; 4]]);
}

#[test]
fn answers_to_an_earlier_request_are_not_taken_for_this_ones() {
    let refused = (NLMSG_ERROR, 0, (-libc::EPERM).to_ne_bytes().to_vec());
    let mut kernel = connected(vec![
        vec![vec![refused, entry(0, 9), done(0, 0)], vec![entry(0, 9)]],
        vec![vec![entry(0, 1), done(0, 0)]],
    ]);
    assert_eq!(kernel.ask(dump()).unwrap_err().errno(), Some(libc::EPERM));
    assert_eq!(kernel.ask(dump()).unwrap(), [vec![1; 4]]);
}

#[test]
fn answer_with_an_acknowledgement_ends_with_it() {
    let answer = (ENTRY, 0, vec![7; 4]);
    let ack = (NLMSG_ERROR, 0, 0i32.to_ne_bytes().to_vec());
    let asked = |flags| Request::new(18, flags, &[0u8; 4]);
    let acked = vec![vec![answer.clone()], vec![ack]];
    let mut kernel = connected(vec![acked, vec![vec![answer]]]);
    assert_eq!(kernel.ask(asked(NLM_F_ACK)).unwrap(), [vec![7; 4]]);
    assert_eq!(kernel.ask(asked(0)).unwrap(), [vec![7; 4]]);
}

#[test]
fn number_of_an_error_is_read_whatever_it_is() {
    let number = |code: i32| status(&code.to_ne_bytes(), 0).unwrap_err().errno();
    assert_eq!(number(-libc::ENETUNREACH), Some(libc::ENETUNREACH));
    assert_eq!(number(i32::MIN), Some(i32::MAX));
}

#[test]
fn nested_attributes_are_found_again() {
    let inner = run(&[(3, &text("rx-gro"))]);
    let outer = run(&[(1, &7u32.to_ne_bytes()), (2, &inner)]);
    assert_eq!(find(&outer, 1).and_then(read_u32), Some(7));
    let name = find(&outer, 2).and_then(|inner| find(inner, 3));
    assert_eq!(name.and_then(read_string).as_deref(), Some("rx-gro"));
    assert_eq!(find(&outer, 3), None);
}

#[test]
fn refusal_carries_the_kernels_words() {
    let words = text("Peer MTU is too large to set XDP");
    let mut body = (-libc::ERANGE).to_ne_bytes().to_vec();
    body.extend([0; MESSAGE_HEADER]);
    body.extend(run(&[(NLMSGERR_ATTR_MSG, &words)]));
    let error = acknowledgement(NLM_F_CAPPED, &body).unwrap_err();
    assert_eq!(error.errno(), Some(libc::ERANGE));
    assert_eq!(
        error.to_string(),
        "the kernel refused: Peer MTU is too large to set XDP"
    );
}

#[test]
fn unknown_family_is_none() {
    let mut generic = Connection::generic().unwrap();
    assert_eq!(generic.family("nosuchfamily").unwrap(), None);
    assert!(generic.family("nlctrl").unwrap().is_some());
}
