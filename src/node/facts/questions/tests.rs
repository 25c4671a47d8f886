//! What agents answer, in time and late, valid and otherwise.
//!
//! Invariant: the fake passes answers on as they are; the clock is paused where an agent is slow.
//! Failure: the fact that was read differently.

use libvirt::FakeHypervisor;
use serde_json::Value;

use super::*;

const ID: Uuid = Uuid::from_u128(7);

async fn guest(answers: impl IntoIterator<Item = Value>) -> FakeHypervisor {
    let driver = FakeHypervisor::default().agent_answering(answers);
    let xml = format!("<domain><name>a</name><uuid>{ID}</uuid></domain>");
    driver.define(xml).await.unwrap();
    driver.start(ID).await.unwrap();
    driver
}

async fn reported(list: Value) -> Vec<Interface> {
    let driver = guest([list]).await;
    let survey = Survey::default();
    let survey = survey.turn(&driver, ID, false, Instant::now()).await;
    survey.reply.interfaces
}

#[tokio::test]
async fn only_present_addresses_are_reported() {
    let nic = json!([
        {"name": "lo", "hardware-address": "00:00:00:00:00:00",
         "ip-addresses": [{"ip-address": "127.0.0.1", "prefix": 8}]},
        {"name": "eth0\u{1b}[31m", "hardware-address": "0A:58:0a:01:00:05", "ip-addresses": [
            {"ip-address": "10.1.0.5", "prefix": 24, "ip-address-type": "ipv4"},
            {"ip-address": "fe80::1", "prefix": 64},
            {"ip-address": "10.1.0.6", "prefix": 33},
            {"ip-address": "10.1.0.7"},
            {"ip-address": "evil", "prefix": 8},
            {"ip-address": "::1", "prefix": 128},
        ], "statistics": {"rx-bytes": 1}},
        {"name": "", "hardware-address": "0a:58:0a:01:00:06"},
        {"name": "x", "hardware-address": "not an address"},
        {"name": "tunnel"},
    ]);
    let expected = Interface {
        name: "eth0[31m".to_owned(),
        mac: "0a:58:0a:01:00:05".to_owned(),
        addresses: vec!["10.1.0.5/24".to_owned(), "fe80::1/64".to_owned()],
    };
    assert_eq!(reported(nic).await, [expected]);
    for other in [json!({"a": 1}), json!(["nonsense"]), json!([[]])] {
        assert_eq!(reported(other).await, []);
    }
}

#[tokio::test]
async fn a_guest_reply_over_the_limit_is_truncated_or_none() {
    let nic = |name: &str| {
        let address = json!({"ip-address": "10.1.0.5", "prefix": 24});
        json!({"name": name, "hardware-address": "0a:58:0a:01:00:05",
            "ip-addresses": vec![address; 100]})
    };
    let found = reported(Value::Array(vec![nic(&"n".repeat(900)); 40])).await;
    assert_eq!(found.len(), INTERFACES);
    assert_eq!(found[0].addresses.len(), ADDRESSES);
    assert_eq!(found[0].name.len(), crate::node::facts::TEXT);
    assert_eq!(reported(Value::Array(vec![nic("n"); 1000])).await, []);
}

#[tokio::test]
async fn a_guest_without_an_agent_reports_no_facts() {
    let driver = FakeHypervisor::default();
    let survey = Survey::default().turn(&driver, ID, true, Instant::now());
    assert_eq!(survey.await, Survey::default());
}

#[tokio::test(start_paused = true)]
async fn a_guest_that_answers_slowly_ends_its_turn_and_goes_on_in_the_next() {
    let nics = json!([{"name": "eth0", "hardware-address": "0a:58:0a:01:00:05"}]);
    let name = json!({"host-name": "slow"});
    let system = json!({"id": "debian"});
    let driver = guest([nics, name, system]).await;
    driver.slow_agents(Duration::from_millis(2900));
    let mut survey = Survey::default();
    let mut longest = Duration::ZERO;
    let mut order = Vec::new();
    for _ in 0..3 {
        let begun = Instant::now();
        survey = survey.turn(&driver, ID, true, begun).await;
        longest = longest.max(begun.elapsed());
        order.push(survey.next);
    }
    assert_eq!(order, [2, 4, 0]);
    assert_eq!(survey.reply.interfaces[0].name, "eth0");
    let Reply {
        host_name, os_id, ..
    } = &survey.reply;
    assert_eq!((host_name.as_str(), os_id.as_str()), ("slow", "debian"));
    // The last answer, and the end of a file.
    assert!(
        longest <= TURN + ANSWER + Duration::from_secs(1),
        "{longest:?}"
    );
}

#[tokio::test]
async fn silence_changes_nothing_and_a_refusal_is_an_answer() {
    let known = Reply {
        host_name: "known".to_owned(),
        os_id: "debian".to_owned(),
        ..Reply::default()
    };
    let refused = json!({"error": "not in this version"});
    let driver = guest([json!([]), refused]).await;
    let survey = Survey {
        reply: known,
        next: 0,
    };
    let survey = survey.turn(&driver, ID, true, Instant::now()).await;
    assert_eq!(survey.reply.host_name, "");
    assert_eq!(survey.reply.os_id, "debian");
}

#[tokio::test]
async fn a_malformed_answer_counts_as_none_also_of_a_file() {
    let known = Reply {
        published: [("ready".to_owned(), "yes".to_owned())].into(),
        missing: vec!["/data".to_owned()],
        ..Reply::default()
    };
    let content = json!({"buf-b64": "no base64!"});
    let files = [json!("no handle"), json!(7), content, json!({})];
    let driver = guest([json!([]), json!({}), json!({})].into_iter().chain(files)).await;
    let survey = Survey {
        reply: known,
        next: 0,
    };
    let survey = survey.turn(&driver, ID, true, Instant::now()).await;
    assert_eq!(survey.reply, Reply::default());
}
