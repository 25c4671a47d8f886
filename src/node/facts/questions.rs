//! The questions to the QEMU guest agent, some of them in each turn of a guest.
//!
//! Invariant: each turn has a question, and none after the first begins later than [`TURN`]: a guest
//! that answers slowly ends its turn with that answer, and its next turn goes on with the next
//! question. Answers are read into the fields that are needed, of a bounded number of bytes.
//! Failure: what the guest refuses, or answers in another form, counts as none; what it does not
//! answer stays as it was.

use std::time::Duration;

use libvirt::guest::{self, Few, Object};
use libvirt::{Error, Hypervisor};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::json;
use tokio::time::Instant;
use uuid::Uuid;

use super::{
    ADDRESSES, ANSWER, INTERFACES, Interface, Reply, is_usable_mac, missing, plain, published,
    usable,
};

/// How long a guest is asked in one turn, before its last answer.
const TURN: Duration = ANSWER;

/// Most bytes of an answer: a host of containers has some hundred NICs.
const LONGEST: usize = 256 << 10;

/// NICs of a list, and addresses of each, among which those that are reported are looked for.
const LISTED_INTERFACES: usize = 128;
const LISTED_ADDRESSES: usize = 64;

/// What is asked, in this order.
const ALL: [Question; 5] = [
    Question::Interfaces,
    Question::HostName,
    Question::System,
    Question::Published,
    Question::Missing,
];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Question {
    Interfaces,
    HostName,
    System,
    Published,
    /// Paths that its boot script could not mount or write.
    Missing,
}

/// How far the questions to a guest have come.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Survey {
    /// What it has answered.
    pub(crate) reply: Reply,
    /// The question that comes next; 0 when all have been asked.
    pub(crate) next: usize,
}

impl Survey {
    /// Asks the guest in its turn, which began at `begun`. `has_seed`: its cloud-init disk has a boot
    /// script.
    pub(crate) async fn turn<H: Hypervisor>(
        mut self,
        driver: &H,
        domain: Uuid,
        has_seed: bool,
        begun: Instant,
    ) -> Self {
        for (number, question) in ALL.into_iter().enumerate().skip(self.next) {
            if number > self.next && begun.elapsed() >= TURN {
                self.next = number;
                return self;
            }
            if has_seed || question != Question::Missing {
                self.ask(driver, domain, question).await;
            }
        }
        self.next = 0;
        self
    }

    async fn ask<H: Hypervisor>(&mut self, driver: &H, domain: Uuid, question: Question) {
        let reply = &mut self.reply;
        match question {
            Question::Interfaces => {
                let list = query::<Listed>(driver, domain, "guest-network-get-interfaces").await;
                if let Some(list) = said(list) {
                    reply.interfaces = interfaces(list);
                }
            }
            Question::HostName => {
                let name = query(driver, domain, "guest-get-host-name").await;
                if let Some(Object(HostName { host_name })) = said(name) {
                    reply.host_name = plain(&host_name);
                }
            }
            Question::System => {
                let system = query::<Object<System>>(driver, domain, "guest-get-osinfo").await;
                if let Some(Object(system)) = said(system) {
                    reply.os_id = plain(&system.id);
                    reply.os_name = plain(&system.pretty_name);
                    if reply.os_name.is_empty() {
                        reply.os_name = plain(&system.name);
                    }
                    reply.os_version = plain(&system.version_id);
                    reply.kernel = plain(&system.kernel_release);
                }
            }
            Question::Published => {
                let most = published::READ;
                let file = guest::read_file(driver, domain, published::FILE, most, ANSWER).await;
                if let Some(file) = said(file) {
                    reply.published = published::values(&file.unwrap_or_default());
                }
            }
            Question::Missing => {
                let most = missing::READ;
                let file = guest::read_file(driver, domain, missing::FILE, most, ANSWER).await;
                if let Some(file) = said(file) {
                    reply.missing = missing::paths(&file.unwrap_or_default());
                }
            }
        }
    }
}

async fn query<T: DeserializeOwned + Default>(
    driver: &impl Hypervisor,
    domain: Uuid,
    command: &str,
) -> Result<T, Error> {
    let command = json!({ "execute": command });
    let reply = driver.agent(domain, command, ANSWER).await?;
    // What is of another form, or too long, counts as none.
    Ok(reply.read(LONGEST).unwrap_or_default())
}

/// What a guest has answered; a refusal is an answer without content.
fn said<T: Default>(answer: Result<T, Error>) -> Option<T> {
    match answer {
        Ok(content) => Some(content),
        Err(Error::Refused { .. } | Error::AgentForbids { .. }) => Some(T::default()),
        Err(_) => None,
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
struct HostName {
    host_name: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
struct System {
    id: String,
    name: String,
    pretty_name: String,
    version_id: String,
    kernel_release: String,
}

type Listed = Few<Object<Nic>, LISTED_INTERFACES>;

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
struct Nic {
    name: String,
    hardware_address: String,
    ip_addresses: Few<Object<Address>, LISTED_ADDRESSES>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
struct Address {
    ip_address: String,
    prefix: Option<u64>,
}

fn interfaces(Few(list): Listed) -> Vec<Interface> {
    let read = list.into_iter().filter_map(|Object(nic)| {
        let name = plain(&nic.name);
        let mac = nic.hardware_address.to_lowercase();
        let Few(addresses) = nic.ip_addresses;
        let addresses = addresses.iter().filter_map(|Object(address)| {
            usable(address.ip_address.parse().ok()?, address.prefix?)
        });
        let addresses = addresses.take(ADDRESSES).collect();
        (is_usable_mac(&mac) && !name.is_empty()).then_some(Interface {
            name,
            mac,
            addresses,
        })
    });
    read.take(INTERFACES).collect()
}

#[cfg(test)]
mod tests;
