//! Virtual CPUs as a guest sees them: the commands of the QEMU guest agent that list them and take
//! them on or off line.
//!
//! Invariant: a CPU that the guest cannot do without stays; of a list the first 255 are looked at.
//! Failure: those of [`Hypervisor::agent`]; an answer that makes no sense is [`crate::Error::Agent`].

use std::time::Duration;

use serde::Deserialize;
use serde_json::{Value, json};
use uuid::Uuid;

use super::{AgentReply, Few, Object, SHORT_REPLY};
use crate::{Hypervisor, Result};

/// The most that a machine has.
const MOST: usize = 255;

/// A virtual CPU in the guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Vcpu {
    logical_id: i64,
    online: bool,
    #[serde(default)]
    can_offline: bool,
}

/// Requests the guest to work with this many of the virtual CPUs that it has, and returns with how
/// many it works now. `deadline` is for each of up to three commands.
pub async fn use_vcpus<H: Hypervisor>(
    hypervisor: &H,
    domain: Uuid,
    number: u16,
    deadline: Duration,
) -> Result<u16> {
    let list = || async {
        let command = json!({"execute": "guest-get-vcpus"});
        read(&hypervisor.agent(domain, command, deadline).await?)
    };
    let all = list().await?;
    let changes = changes(&all, number.into());
    if changes.is_empty() {
        return Ok(online(&all));
    }
    let command = json!({"execute": "guest-set-vcpus", "arguments": {"vcpus": changes}});
    hypervisor.agent(domain, command, deadline).await?.check()?;
    Ok(online(&list().await?))
}

fn read(reply: &AgentReply) -> Result<Vec<Vcpu>> {
    let Few(all) = reply.read::<Few<Object<Vcpu>, MOST>>(SHORT_REPLY)?;
    let mut all: Vec<Vcpu> = all.into_iter().map(|Object(vcpu)| vcpu).collect();
    all.sort_by_key(|vcpu| vcpu.logical_id);
    Ok(all)
}

fn online(all: &[Vcpu]) -> u16 {
    let count = all.iter().filter(|vcpu| vcpu.online).count();
    u16::try_from(count).unwrap_or(u16::MAX)
}

/// What has to change so that this many are on line: the last go first, and come last.
fn changes(all: &[Vcpu], number: usize) -> Vec<Value> {
    let now = all.iter().filter(|vcpu| vcpu.online).count();
    let change = |vcpu: &Vcpu| json!({"logical-id": vcpu.logical_id, "online": !vcpu.online});
    let on = all.iter().filter(|vcpu| !vcpu.online).map(change);
    let off = all
        .iter()
        .rev()
        .filter(|vcpu| vcpu.online && vcpu.can_offline);
    match now.cmp(&number) {
        std::cmp::Ordering::Less => on.take(number - now).collect(),
        _ => off.map(change).take(now - number).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guest(online: &[bool]) -> Vec<Vcpu> {
        let vcpu = |(id, online): (usize, &bool)| Vcpu {
            logical_id: i64::try_from(id).unwrap(),
            online: *online,
            can_offline: id > 0,
        };
        online.iter().enumerate().map(vcpu).collect()
    }

    #[test]
    fn the_last_go_first_and_the_first_stays() {
        let of = |now: &[bool], number| {
            let all = changes(&guest(now), number);
            let change = |c: Value| (c["logical-id"].as_i64(), c["online"].as_bool());
            all.into_iter().map(change).collect::<Vec<_>>()
        };
        let change = |id, online| (Some(id), Some(online));
        assert_eq!(of(&[true; 3], 1), [change(2, false), change(1, false)]);
        assert_eq!(of(&[true; 2], 0), [change(1, false)]);
        assert_eq!(of(&[true, false, false], 2), [change(1, true)]);
        assert_eq!(of(&[true, false], 7), [change(1, true)]);
        assert!(of(&[true; 2], 2).is_empty());
    }

    #[test]
    fn an_answer_is_checked() {
        let read = |list: Value| read(&AgentReply::new(json!({"return": list}).to_string()));
        let reply = json!([{"logical-id": 1, "online": true, "can-offline": true},
            {"logical-id": 0, "online": true}]);
        let all = read(reply).unwrap();
        assert_eq!((all[0].logical_id, all[0].can_offline), (0, false));
        assert_eq!(online(&all), 2);
        assert!(read(json!({"error": 1})).is_err());
        assert!(read(json!([[1, true, true]])).is_err());
        let many = json!(vec![json!({"logical-id": 1, "online": true}); 300]);
        assert_eq!(online(&read(many).unwrap()), 255);
    }
}
