//! Requests to a guest that are no commands: facts about it, its clock, and what its sessions use.
//!
//! Invariant: a request has one answer, or none after [`ANSWER`]; nothing of an abandoned one stays.
//! Failure: [`Error`]; the guest may perform a request whose answer came too late.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use guestapi::request::Action;
use guestapi::{
    Answer, Facts, ReportFacts, ReportUsage, Request, SetLimits, SetTime, Setting, Usage,
};

use super::link::{Link, number};
use super::sessions::printable;
use super::{Agent, Error};

/// Time for an answer.
pub(super) const ANSWER: Duration = Duration::from_secs(10);

/// The queue that a request takes to the guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Queue {
    /// It waits for room, behind requests and input of others.
    Ordinary,
    /// Before all of these, in the order of such requests.
    Urgent,
}

impl Agent {
    /// What the guest reports about itself. All of it is hostile: texts are to be bounded and
    /// shown without control characters.
    pub async fn facts(&self) -> Result<Facts, Error> {
        let answer = self
            .request(Action::ReportFacts(ReportFacts {}), ANSWER)
            .await?;
        answer.facts.ok_or(Error::Protocol)
    }

    /// Sets the guest's clock to that of the node.
    pub async fn set_time(&self) -> Result<(), Error> {
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        let nanoseconds = i64::try_from(now.as_nanos()).unwrap_or(i64::MAX);
        let action = Action::SetTime(SetTime { nanoseconds });
        self.request(action, ANSWER).await.map(drop)
    }

    /// What the processes of a kept session use; `None` when it has ended.
    pub async fn usage(&self, keep: &str) -> Result<Option<Usage>, Error> {
        let keep = vec![keep.to_owned()];
        let action = Action::ReportUsage(ReportUsage { keep });
        let answer = self.request(action, ANSWER).await?;
        Ok(answer.usage.into_iter().next())
    }

    /// Changes the limits of a kept session: files of cgroup v2 and their values.
    pub async fn set_limits(&self, keep: &str, limits: Vec<Setting>) -> Result<(), Error> {
        let keep = keep.to_owned();
        let action = Action::SetLimits(SetLimits { keep, limits });
        self.request(action, ANSWER).await.map(drop)
    }

    async fn request(&self, action: Action, time: Duration) -> Result<Answer, Error> {
        self.request_by(Queue::Ordinary, action, time).await
    }

    /// Requests an action by a queue, and waits for its answer.
    pub(super) async fn request_by(
        &self,
        queue: Queue,
        action: Action,
        time: Duration,
    ) -> Result<Answer, Error> {
        let pending = Pending {
            number: number(),
            link: &self.link,
        };
        let answer = self.link.sessions.expect(pending.number);
        let request = async {
            let request = Request {
                number: pending.number,
                action: Some(action),
            };
            let outbox = &self.link.outbox;
            let is_sent = match queue {
                Queue::Ordinary => outbox.request(request).await,
                Queue::Urgent => {
                    outbox.notify(request);
                    true
                }
            };
            if !is_sent || !self.link.is_alive() {
                return Err(Error::Lost);
            }
            answer.await.map_err(|_| Error::Lost)
        };
        match tokio::time::timeout(time, request).await {
            Ok(answer) => answer.and_then(|answer| match answer.error.as_str() {
                "" => Ok(answer),
                reason => Err(Error::Refused(printable(reason))),
            }),
            Err(_) => {
                self.link.doubt();
                Err(Error::NoAnswer(time))
            }
        }
    }
}

/// A request that waits for its answer.
struct Pending<'a> {
    number: u64,
    link: &'a Link,
}

impl Drop for Pending<'_> {
    fn drop(&mut self) {
        self.link.sessions.forget(self.number);
    }
}
