//! Deadlines in virtual time.
#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

use std::cell::Cell;

use super::*;

const DEADLINE: Duration = Duration::from_secs(7);

#[test]
fn a_slow_machine_has_longer_deadlines_and_a_quick_one_the_same() {
    for (text, wanted) in [(None, 1.0), (Some("2.5"), 2.5), (Some("0.3"), 1.0)] {
        assert!((slowness(text).unwrap() - wanted).abs() < 1e-9, "{text:?}");
    }
    for text in ["", "slow", "-1", "NaN", "inf", "1000"] {
        let refused = format!("{:#}", slowness(Some(text)).unwrap_err());
        assert!(refused.contains(SLOWNESS), "{refused}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_never_comes_ends_with_the_words_that_the_runner_knows() {
    let looks = Cell::new(0);
    let never = eventually(DEADLINE, "the moon", || async {
        looks.set(looks.get() + 1);
        bail!("look {}", looks.get())
    });
    let error: Result<()> = never.await;
    let error = format!("{:#}", error.unwrap_err());
    let within = scaled(DEADLINE).unwrap();
    let wanted = format!("the moon: not within {within:?}: look {}", looks.get());
    assert_eq!(error, wanted);
    let pending = in_time(DEADLINE, "the sun", std::future::pending::<Result<()>>());
    let error = pending.await.unwrap_err().to_string();
    assert_eq!(error, format!("the sun: not within {within:?}"));
}

#[tokio::test(start_paused = true)]
async fn what_came_while_the_machine_stood_still_is_seen_after_the_deadline() {
    let looks = Cell::new(0);
    let seen = eventually(DEADLINE, "the moon", || async {
        looks.set(looks.get() + 1);
        if looks.get() == 1 {
            tokio::time::advance(scaled(DEADLINE)? * 2).await;
            bail!("it was not there before");
        }
        Ok(())
    });
    seen.await.unwrap();
    assert_eq!(looks.get(), 2);
}
