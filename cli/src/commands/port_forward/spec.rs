//! What `port-forward` is to listen on, and for which port of the guest.
//!
//! Invariant: without an address it is the loopback address, so that no other computer reaches a guest by this one.
//! Failure: a sentence with the form; UDP is refused, since the API server carries TCP alone.

use std::str::FromStr;

use anyhow::Context;
use tokio::net::TcpListener;

/// Where programs of this computer alone connect.
const LOOPBACK: &str = "127.0.0.1";
/// The form, for errors.
const FORM: &str = "use [[ADDRESS:]LOCAL:]PORT, such as 80, 8080:80 or 0.0.0.0:8080:80";

/// A TCP port of a guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Port(pub(super) u16);

/// A port of this computer that leads to one of the guest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Forward {
    address: String,
    /// 0: a free one.
    local: u16,
    pub(super) port: Port,
}

impl FromStr for Port {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.parse() {
            Ok(port @ 1..) => Ok(Self(port)),
            _ => Err(format!("{text:?} is no port: ports are 1 to 65535")),
        }
    }
}

impl FromStr for Forward {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.starts_with("udp/") {
            return Err(
                "UDP cannot be forwarded: the API server carries TCP alone; expose the port by a Service"
                    .to_owned(),
            );
        }
        let text = text.strip_prefix("tcp/").unwrap_or(text);
        let Some((before, port)) = text.rsplit_once(':') else {
            let port: Port = text.parse()?;
            return Ok(Self {
                address: LOOPBACK.to_owned(),
                local: port.0,
                port,
            });
        };
        let (address, local) = before.rsplit_once(':').unwrap_or((LOOPBACK, before));
        let is_bracketed = address.starts_with('[') && address.ends_with(']');
        let address = if is_bracketed {
            &address[1..address.len() - 1]
        } else {
            address
        };
        if address.is_empty() || !is_bracketed && address.contains(':') {
            return Err(format!(
                "{address:?} is no address: {FORM}; IPv6 is written in brackets, as [::1]:8080:80"
            ));
        }
        let local = match local {
            "" => 0,
            number => number
                .parse()
                .map_err(|_| format!("{number:?} is no port: {FORM}"))?,
        };
        Ok(Self {
            address: address.to_owned(),
            local,
            port: port.parse()?,
        })
    }
}

impl Forward {
    /// Binds the port.
    pub(super) async fn listen(&self) -> anyhow::Result<TcpListener> {
        let bound = TcpListener::bind((self.address.as_str(), self.local)).await;
        bound.with_context(|| {
            format!(
                "failed to listen on port {} of {}: choose another one before the colon, as in 8081:{}",
                self.local, self.address, self.port.0
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<(String, u16, u16), String> {
        let forward: Forward = text.parse()?;
        Ok((forward.address, forward.local, forward.port.0))
    }

    #[test]
    fn ports_are_read_in_all_their_forms() {
        let at = |address: &str, local, port| Ok((address.to_owned(), local, port));
        assert_eq!(read("80"), at("127.0.0.1", 80, 80));
        assert_eq!(read("8080:80"), at("127.0.0.1", 8080, 80));
        assert_eq!(read(":80"), at("127.0.0.1", 0, 80));
        assert_eq!(read("tcp/8080:80"), at("127.0.0.1", 8080, 80));
        assert_eq!(read("0.0.0.0:8080:80"), at("0.0.0.0", 8080, 80));
        assert_eq!(read("localhost:0:80"), at("localhost", 0, 80));
        assert_eq!(read("[::1]:8080:80"), at("::1", 8080, 80));
    }

    #[test]
    fn what_is_no_port_and_udp_are_refused_with_the_form() {
        let words = |text| read(text).unwrap_err();
        assert!(words("udp/53").contains("TCP alone"), "{}", words("udp/53"));
        assert!(
            words("::1:8080:80").contains("in brackets"),
            "{}",
            words("::1:8080:80")
        );
        for text in [
            "", "0", "x", "8080:", "8080:0", "x:80", "70000:80", ":", "::80",
        ] {
            assert!(read(text).is_err(), "{text:?}");
        }
    }

    #[tokio::test]
    async fn a_port_that_is_taken_is_named() {
        let first: Forward = ":80".parse().unwrap();
        let first = first.listen().await.unwrap();
        let taken = first.local_addr().unwrap().port();
        let second: Forward = format!("{taken}:80").parse().unwrap();
        let error = format!("{:#}", second.listen().await.unwrap_err());
        assert!(
            error.contains(&format!("port {taken}")) && error.contains("8081:80"),
            "{error}"
        );
    }
}
