//! Stand-in for the table types until `fastpath` has them.
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Protocol {
    Tcp,
    Udp,
}
impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
        })
    }
}
impl FromStr for Protocol {
    type Err = String;
    fn from_str(s: &str) -> Result<Self, String> {
        match s {
            "tcp" => Ok(Self::Tcp),
            "udp" => Ok(Self::Udp),
            _ => Err("protocol is not tcp or udp".to_owned()),
        }
    }
}
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServiceKey {
    pub address: IpAddr,
    pub port: u16,
    pub protocol: Protocol,
}
impl fmt::Display for ServiceKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}/{}",
            SocketAddr::new(self.address, self.port),
            self.protocol
        )
    }
}
impl FromStr for ServiceKey {
    type Err = String;
    fn from_str(s: &str) -> Result<Self, String> {
        let (socket, protocol) = s.rsplit_once('/').ok_or("no protocol")?;
        let socket: SocketAddr = socket.parse().map_err(|_| "not ADDRESS:PORT")?;
        Ok(Self {
            address: socket.ip(),
            port: socket.port(),
            protocol: protocol.parse()?,
        })
    }
}
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ForwardMode {
    Ipip,
    L2dsr,
}
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackendSpec {
    pub address: IpAddr,
    pub weight: u32,
}
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceSpec {
    pub mode: ForwardMode,
    pub log2_slots: Option<u8>,
    pub backends: Vec<BackendSpec>,
}
