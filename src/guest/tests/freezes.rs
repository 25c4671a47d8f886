//! Freezes, with a guest that the test plays.
//!
//! Invariant: as of the other tests.
//! Failure: as of the other tests.

use guestapi::request::Action;
use guestapi::{LONGEST_FREEZE, Request};

use super::*;

const MINUTE: Duration = Duration::from_secs(60);

impl Guest {
    async fn request(&mut self) -> Request {
        match self.next().await {
            Kind::Request(request) => request,
            other => panic!("{other:?}"),
        }
    }

    /// Takes a request to freeze; its number, and for how many seconds.
    async fn freezes(&mut self) -> (u64, u32) {
        let request = self.request().await;
        match request.action {
            Some(Action::Freeze(freeze)) => (request.number, freeze.seconds),
            other => panic!("{other:?}"),
        }
    }

    async fn thaws(&mut self) -> u64 {
        let request = self.request().await;
        assert!(
            matches!(request.action, Some(Action::Thaw(_))),
            "{request:?}"
        );
        request.number
    }

    async fn counts(&mut self, number: u64, file_systems: u32) {
        self.send(Answer {
            number,
            file_systems,
            ..Answer::default()
        })
        .await;
    }
}

/// A guest whose time was over, or a program in it that thawed, ends what was consistent.
#[rstest::rstest]
#[case::all(2, true)]
#[case::some(1, false)]
#[case::none(0, false)]
#[tokio::test]
async fn a_thaw_shows_whether_all_were_frozen_until_then(#[case] thawed: u32, #[case] all: bool) {
    let port = Port::new();
    let (agent, mut guest) = port.hostile().await;
    let plays = async {
        let number = guest.freezes().await.0;
        guest.counts(number, 2).await;
        let number = guest.thaws().await;
        guest.counts(number, thawed).await;
    };
    let freezes = async {
        let freeze = agent.freeze(MINUTE).await.unwrap();
        assert_eq!(freeze.file_systems(), 2);
        freeze.thaw().await
    };
    let ((), outcome) = tokio::join!(plays, freezes);
    assert_eq!(outcome, Ok(all));
}

#[tokio::test]
async fn a_freeze_that_is_given_up_is_thawed_after_it() {
    let port = Port::new();
    let (agent, mut guest) = port.hostile().await;
    let hour = Duration::from_secs(3600);
    let (number, seconds) = tokio::select! {
        froze = agent.freeze(hour) => panic!("{froze:?}"),
        asked = guest.freezes() => asked,
    };
    assert_eq!(seconds, LONGEST_FREEZE);
    guest.thaws().await;
    // It came too late.
    guest.counts(number, 1).await;

    let refuses = async {
        let number = guest.freezes().await.0;
        let error = "no\nreason".to_owned();
        let refusal = Answer {
            number,
            error,
            ..Answer::default()
        };
        guest.send(refusal).await;
    };
    let (refused, ()) = tokio::join!(agent.freeze(hour), refuses);
    let reason = "no reason".to_owned();
    assert_eq!(refused.unwrap_err(), Error::Refused(reason));
}

#[tokio::test]
async fn a_freeze_that_is_not_answered_ends_with_its_time() {
    let port = Port::new();
    let (agent, mut guest) = port.hostile().await;
    let (outcome, number) = tokio::join!(agent.freeze(Duration::from_secs(1)), async {
        guest.freezes().await;
        guest.thaws().await
    });
    assert_eq!(
        outcome.unwrap_err(),
        Error::NoAnswer(Duration::from_secs(1))
    );
    assert_ne!(number, 0);
}
