//! The nodes' part of health checks: answers echoes that arrive behind an outer header, as Guideway on a node does.

use std::{
    net::{Ipv4Addr, SocketAddr},
    os::fd::OwnedFd,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use anyhow::{Context, Result};
use lab::Namespace;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, ipproto, recv, sendto,
    socket_with,
    sockopt::{Timeout, set_socket_timeout},
};
use socket2::{SockFilter, SockRef};
use xdp_prog::csum::Sum;

const IP_HEADER: usize = 20;
const PROTOCOL: usize = 9;
const ICMP: u8 = 1;
const ECHO_REQUEST: u8 = 8;
const ECHO_REPLY: u8 = 0;
/// How soon the thread notices that it must end.
const NOTICE: Duration = Duration::from_millis(200);

/// A thread that answers echoes for all nodes.
#[derive(Debug)]
pub(super) struct Nodes {
    end: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Nodes {
    pub(super) fn start(machine: &Namespace) -> Result<Self> {
        let open = |protocol| {
            let flags = SocketFlags::CLOEXEC;
            socket_with(AddressFamily::INET, SocketType::RAW, flags, Some(protocol))
        };
        let (requests, replies) = machine
            .run(|| anyhow::Ok((open(ipproto::IPIP)?, open(ipproto::RAW)?)))
            .context("opening the nodes' sockets for echoes")?;
        set_socket_timeout(&requests, Timeout::Recv, Some(NOTICE))?;
        // The thread must not be woken by the connections of clients.
        SockRef::from(&requests).attach_filter(&only_icmp())?;
        let end = Arc::new(AtomicBool::new(false));
        let ended = Arc::clone(&end);
        Ok(Self {
            end,
            thread: Some(thread::spawn(move || {
                while !ended.load(Ordering::Relaxed) {
                    answer_one(&requests, &replies);
                }
            })),
        })
    }
}

impl Drop for Nodes {
    fn drop(&mut self) {
        self.end.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // The thread returns nothing.
            let _ = thread.join();
        }
    }
}

/// Waits a while for one packet and answers it. The agent notices an echo that is not answered.
fn answer_one(requests: &OwnedFd, replies: &OwnedFd) {
    let mut packet = [0; 256];
    let Ok((length, _)) = recv(requests, &mut packet, RecvFlags::empty()) else {
        return;
    };
    if let Some((to, reply)) = packet.get(IP_HEADER..length).and_then(reply_to) {
        let to = SocketAddr::from((to, 0));
        let _ = sendto(replies, &reply, SendFlags::empty(), &to);
    }
}

/// Returns the reply to the inner packet if that is an echo request. The kernel fills in the IP checksum.
fn reply_to(request: &[u8]) -> Option<(Ipv4Addr, Vec<u8>)> {
    let (header, message) = request.split_at_checked(IP_HEADER)?;
    if header[0] != 0x45 || header[PROTOCOL] != ICMP || *message.first()? != ECHO_REQUEST {
        return None;
    }
    let client: [u8; 4] = header[12..16].try_into().ok()?;
    let mut reply = request.to_vec();
    reply.copy_within(16..20, 12);
    reply[16..20].copy_from_slice(&client);
    let message = &mut reply[IP_HEADER..];
    message[0] = ECHO_REPLY;
    message.get_mut(2..4)?.fill(0);
    let checksum = Sum::ZERO.add_bytes(message).checksum();
    message[2..4].copy_from_slice(&checksum.to_be_bytes());
    Some((client.into(), reply))
}

/// Returns a classic BPF filter for inner packets that are ICMP.
fn only_icmp() -> [SockFilter; 4] {
    const LOAD_BYTE: u16 = 0x30;
    const SKIP_UNLESS: u16 = 0x15;
    const RETURN: u16 = 0x06;
    let protocol = u32::try_from(IP_HEADER + PROTOCOL).expect("it is 29");
    [
        SockFilter::new(LOAD_BYTE, 0, 0, protocol),
        SockFilter::new(SKIP_UNLESS, 0, 1, ICMP.into()),
        SockFilter::new(RETURN, 0, 0, u32::MAX),
        SockFilter::new(RETURN, 0, 0, 0),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn echo_goes_back_to_where_it_came_from() {
        let mut request = vec![0; IP_HEADER + 16];
        request[0] = 0x45;
        request[PROTOCOL] = ICMP;
        request[12..20].copy_from_slice(&[10, 0, 0, 2, 10, 1, 0, 7]);
        request[20..].copy_from_slice(&[8, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14]);
        let (to, reply) = reply_to(&request).unwrap();
        assert_eq!(to, Ipv4Addr::new(10, 0, 0, 2));
        assert_eq!(reply[12..20], [10, 1, 0, 7, 10, 0, 0, 2]);
        assert_eq!(reply[20..22], [ECHO_REPLY, 0]);
        assert_eq!(reply[24..], request[24..]);
        assert_eq!(Sum::ZERO.add_bytes(&reply[20..]).checksum(), 0);

        request[20] = ECHO_REPLY;
        assert_eq!(reply_to(&request), None);
        request[20] = ECHO_REQUEST;
        request[PROTOCOL] = 6;
        assert_eq!(reply_to(&request), None);
        assert_eq!(reply_to(&request[..19]), None);
    }
}
