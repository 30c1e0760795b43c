//! A driver's counters: of frames that XDP sent and the driver could not transmit, and of what its queues received.
//!
//! A program does not learn the fate of a frame that it sends, and no cheap tracepoint reports it
//! ([`xdp_prog::failure`]). Drivers count such frames, each under names of its own, as `ethtool -S` shows them.
//! Netlink has the names but not all values, so this module reads them as `ethtool` does.

use std::{
    collections::BTreeMap,
    io,
    os::fd::{AsRawFd as _, OwnedFd},
};

use rustix::net::{AddressFamily, SocketType, socket};

use super::interface::NAME_MAX;
use crate::netlink::read_u32;

const ETHTOOL_GSTRINGS: u32 = 0x1b;
const ETHTOOL_GSTATS: u32 = 0x1d;
const ETHTOOL_GSSET_INFO: u32 = 0x37;
/// The set of statistic names (`ETH_SS_STATS`).
const STATISTICS: u32 = 1;
/// Length of a name in a set, in bytes (`ETH_GSTRING_LEN`).
const NAME_LENGTH: usize = 32;
/// Most statistics of a device that are read; a NIC with hundreds of queues has some ten thousand.
const MOST: u32 = 1 << 15;
/// Statistics that the buffers have room for: the kernel writes all that exist, not the number that was asked for.
const ROOM: usize = 1 << 16;

/// Reads how many of XDP's frames a driver failed to send, by the counter's name; the counters of queues are added
/// up.
///
/// The counters start with the device and include the frames of all XDP programs.
///
/// # Errors
///
/// Fails if there is no such device, or if its driver has no statistics.
pub fn transmit_errors(device: &str) -> io::Result<BTreeMap<String, u64>> {
    let names = names(device)?;
    let values = values(device, names.len())?;
    Ok(choose(names.into_iter().zip(values)))
}

/// Reads how many frames each queue of a device has received, by the counter's name, as far as its driver tells: a veth
/// counts those that an XDP program has seen.
///
/// # Errors
///
/// As for [`transmit_errors`].
pub fn received_by_queue(device: &str) -> io::Result<BTreeMap<String, u64>> {
    let names = names(device)?;
    let values = values(device, names.len())?;
    let all = names.into_iter().zip(values);
    Ok(all.filter(|(name, _)| is_received_by_queue(name)).collect())
}

/// Tells whether a counter counts what one queue received: `rx_queue_0_xdp_packets` (veth), `rx0_packets` (mlx5,
/// virtio_net), `rx_queue_0_packets` (ixgbe, virtio_net), `rx-0.packets` (i40e).
fn is_received_by_queue(name: &str) -> bool {
    let has_number = name.bytes().any(|letter| letter.is_ascii_digit());
    name.starts_with("rx") && name.ends_with("packets") && has_number
}

/// Selects the counters of frames that XDP sent and the driver did not. If the device and its queues have a counter
/// of the same name, the device's is taken.
fn choose(all: impl Iterator<Item = (String, u64)>) -> BTreeMap<String, u64> {
    let mut of_device = BTreeMap::new();
    let mut of_queues: BTreeMap<String, u64> = BTreeMap::new();
    for (name, value) in all.filter(|(name, _)| is_transmit_error(name)) {
        let common = without_queue(&name);
        if common == name {
            of_device.insert(name, value);
        } else {
            let sum = of_queues.entry(common).or_default();
            *sum = sum.saturating_add(value);
        }
    }
    of_queues.extend(of_device);
    of_queues
}

/// Tells whether a counter counts frames that XDP sent and the driver did not: `rx_queue_0_xdp_tx_errors` (veth),
/// `tx0_xdp_tx_drops` (virtio_net), `rx_xdp_tx_full` (mlx5), `tx_xdp_xmit_errors` (mvneta).
///
/// A counter of frames that a program dropped (`rx_xdp_drops`) is none of these.
fn is_transmit_error(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    let Some((queue, of_xdp)) = name.split_once("xdp") else {
        return false;
    };
    let is_lost = ["err", "drop", "full", "fail"];
    let is_sent = ["tx", "xmit", "redirect"];
    let has = |text: &str, words: &[&str]| words.iter().any(|word| text.contains(word));
    has(of_xdp, &is_lost) && (queue.starts_with("tx") || has(of_xdp, &is_sent))
}

/// Returns a counter's name without the queue number.
fn without_queue(name: &str) -> String {
    let mut common = String::with_capacity(name.len());
    for part in name.split(['_', '[', ']']) {
        let word = part.trim_end_matches(|digit: char| digit.is_ascii_digit());
        if word.is_empty() {
            continue;
        }
        if !common.is_empty() {
            common.push('_');
        }
        common.push_str(word);
    }
    common
}

fn names(device: &str) -> io::Result<Vec<String>> {
    // struct ethtool_sset_info, followed by one number.
    let mut request = words([ETHTOOL_GSSET_INFO, 0]);
    request.extend((1_u64 << STATISTICS).to_ne_bytes());
    request.extend(words([0, 0]));
    ask(device, &mut request)?;
    let has_any = request.get(8..16).is_some_and(|mask| mask != [0; 8]);
    let number = request.get(16..20).and_then(read_u32).filter(|_| has_any);
    let number = number.filter(|number| (1..=MOST).contains(number));
    let number = number.ok_or_else(|| io::Error::from_raw_os_error(libc::EOPNOTSUPP))?;
    // struct ethtool_gstrings, which ends with the number of names. Newer kernels return none if the number is wrong.
    let mut request = words([ETHTOOL_GSTRINGS, STATISTICS, number]);
    let header = request.len();
    request.resize(header + ROOM * NAME_LENGTH, 0);
    ask(device, &mut request)?;
    let number = request.get(8..header).and_then(read_u32).unwrap_or(0);
    let names = request.get(header..).unwrap_or_default();
    let names = names.chunks(NAME_LENGTH).take(number as usize);
    Ok(names.map(name).collect())
}

fn name(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|byte| *byte == 0);
    let name = bytes.get(..end.unwrap_or(bytes.len()));
    String::from_utf8_lossy(name.unwrap_or_default()).into_owned()
}

fn values(device: &str, number: usize) -> io::Result<Vec<u64>> {
    // struct ethtool_stats, which ends with the number of values in the same way.
    let number = u32::try_from(number).unwrap_or(MOST);
    let mut request = words([ETHTOOL_GSTATS, number]);
    let header = request.len();
    request.resize(header + ROOM * size_of::<u64>(), 0);
    ask(device, &mut request)?;
    let number = request.get(4..header).and_then(read_u32).unwrap_or(0);
    let values = request.get(header..).unwrap_or_default();
    let (values, _) = values.as_chunks();
    let values = values.iter().take(number as usize);
    Ok(values.map(|value| u64::from_ne_bytes(*value)).collect())
}

fn words<const N: usize>(words: [u32; N]) -> Vec<u8> {
    words.map(u32::to_ne_bytes).concat()
}

/// Asks the driver to fill in a request.
fn ask(device: &str, request: &mut [u8]) -> io::Result<()> {
    if device.is_empty() || device.len() > NAME_MAX {
        return Err(io::Error::from_raw_os_error(libc::ENODEV));
    }
    let mut name = [0; libc::IFNAMSIZ];
    for (to, from) in name.iter_mut().zip(device.bytes()) {
        *to = from.cast_signed();
    }
    let mut outer = libc::ifreq {
        ifr_name: name,
        ifr_ifru: libc::__c_anonymous_ifr_ifru {
            ifru_data: request.as_mut_ptr().cast(),
        },
    };
    let socket: OwnedFd = socket(AddressFamily::INET, SocketType::DGRAM, None)?;
    // SAFETY: `outer` names a device and points to a request; both outlive the call. Behind the request's header, the
    // kernel writes one number for GSSET_INFO, which asks for one set. For GSTRINGS and GSTATS it writes as many
    // names or values as the device has. A moment ago that was at most half of the room, and a device does not double
    // its queues in a moment.
    let outcome = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCETHTOOL, &raw mut outer) };
    if outcome < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(all: &[(&str, u64)]) -> Vec<(String, u64)> {
        let all = all.iter().map(|(name, value)| ((*name).to_owned(), *value));
        choose(all).into_iter().collect()
    }

    #[test]
    fn what_xdp_sent_in_vain_is_summed_over_queues() {
        let veth = [
            ("peer_ifindex", 7),
            ("rx_queue_0_xdp_packets", 100),
            ("rx_queue_0_drops", 9),
            ("rx_queue_0_xdp_drops", 9),
            ("rx_queue_0_xdp_tx_errors", 3),
            ("rx_queue_1_xdp_tx_errors", 4),
            ("tx_queue_0_xdp_xmit", 5),
            ("tx_queue_0_xdp_xmit_errors", 6),
        ];
        let wanted = [
            ("rx_queue_xdp_tx_errors".to_owned(), 7),
            ("tx_queue_xdp_xmit_errors".to_owned(), 6),
        ];
        assert_eq!(chosen(&veth), wanted);
    }

    #[test]
    fn drivers_have_names_of_their_own() {
        for name in [
            "peer_tq_0_xdp_xmit_errors",
            "tx0_xdp_tx_drops",
            "rx_xdp_tx_full",
            "tx_xdp_err",
            "rx_xdp_redirect_errors[3]",
            "xdp tx errors",
        ] {
            assert!(is_transmit_error(name), "{name}");
        }
        for name in [
            "rx0_xdp_drops",
            "rx_xdp_drop",
            "rx_xdp_tx",
            "tx_errors",
            "rx_xdp_invalid",
        ] {
            assert!(!is_transmit_error(name), "{name}");
        }
    }

    #[test]
    fn what_each_queue_received_is_told_from_all_else() {
        for name in ["rx_queue_0_xdp_packets", "rx11_packets", "rx-3.packets"] {
            assert!(is_received_by_queue(name), "{name}");
        }
        for name in [
            "rx_packets",
            "tx0_packets",
            "rx_queue_0_xdp_bytes",
            "rx_queue_0_drops",
        ] {
            assert!(!is_received_by_queue(name), "{name}");
        }
    }

    #[test]
    fn what_the_device_counts_is_not_added_to_what_its_queues_do() {
        let mlx5 = [
            ("rx_xdp_tx_full", 5),
            ("rx0_xdp_tx_full", 2),
            ("rx1_xdp_tx_full", 3),
        ];
        assert_eq!(chosen(&mlx5), [("rx_xdp_tx_full".to_owned(), 5)]);
    }

    #[test]
    fn device_without_statistics_or_that_is_not_there_says_so() {
        let error = |device| transmit_errors(device).unwrap_err().raw_os_error();
        assert_eq!(error("lo"), Some(libc::EOPNOTSUPP));
        assert_eq!(error("nosuch0"), Some(libc::ENODEV));
        assert_eq!(error(""), Some(libc::ENODEV));
    }
}
