//! What a hostile guest reports about itself, and what stays of it.
//!
//! Invariant: a report that is kept has the parts of a report and memory for no more.
//! Failure: what was kept.

use guestapi::{Facts, FileSystem};

use super::*;

#[tokio::test]
async fn a_report_of_very_many_parts_is_kept_with_few() {
    let port = Port::new();
    let (agent, mut guest) = port.hostile().await;
    let report = async {
        let Kind::Request(request) = guest.next().await else {
            panic!("something else");
        };
        guest
            .send(Answer {
                number: request.number,
                facts: Some(Facts {
                    host_name: "x".repeat(900),
                    file_systems: vec![FileSystem::default(); 30_000],
                    ..Facts::default()
                }),
                ..Answer::default()
            })
            .await;
    };
    let (facts, ()) = tokio::join!(agent.facts(), report);
    let facts = port.guests.remember(&port.id, &agent, facts.unwrap());
    assert_eq!(facts.host_name.capacity(), guestapi::REPORT_TEXT);
    assert_eq!(facts.file_systems.len(), guestapi::FILE_SYSTEMS);
    assert_eq!(facts.file_systems.capacity(), guestapi::FILE_SYSTEMS);
}
