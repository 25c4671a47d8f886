//! A machine in a small world of random events.
//!
//! Invariant: one instance at a time, whatever happens in whatever order; when nothing more
//! happens, the machine comes to what its owner wants and then to rest.
//! Failure: proptest prints the shortest history that breaks this.

use crds::PowerState;
use lifecycle::backoff::Jitter;
use lifecycle::verbs::{Verb, verb};
use lifecycle::{
    Action, Decision, DesiredState, EndCause, Instance, Patch, Phase, desired, desired_power_state,
};
use proptest::prelude::*;
use proptest::sample::select;

use crate::build::{Case, instance, later, spec};

#[derive(Clone, Debug)]
enum Event {
    DesiredState(&'static str),
    Request(Verb),
    Starts,
    Ends(&'static str),
    Deleted,
    Vanishes,
    Passes(i64),
    Looked,
    /// The status is written, the action is not done: the controller ends.
    Dies,
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let desired_states = select(vec![
        "Always",
        "RerunOnFailure",
        "Manual",
        "Halted",
        "Once",
        "PoweredOn",
        "PoweredOff",
        "Suspended",
        "true",
        "false",
    ]);
    let verbs = select(vec![
        Verb::Start { paused: false },
        Verb::Start { paused: true },
        Verb::Stop {
            grace_seconds: None,
        },
        Verb::Stop {
            grace_seconds: Some(0),
        },
        Verb::Restart { force: false },
        Verb::Suspend,
        Verb::Resume,
        Verb::Pause,
        Verb::Unpause,
    ]);
    let event = prop_oneof![
        2 => desired_states.prop_map(Event::DesiredState),
        4 => verbs.prop_map(Event::Request),
        3 => Just(Event::Starts),
        2 => select(vec!["succeeded/ran", "failed/ran", "failed/never", "failed/short"]).prop_map(Event::Ends),
        1 => Just(Event::Deleted),
        1 => Just(Event::Vanishes),
        2 => (1..400_i64).prop_map(Event::Passes),
        6 => Just(Event::Looked),
        1 => Just(Event::Dies),
    ];
    proptest::collection::vec(event, 0..40)
}

struct World {
    case: Case,
    clock: i64,
    born: u32,
}

impl World {
    fn new() -> Self {
        Self {
            case: Case::parse("Manual none - status=none"),
            clock: 0,
            born: 0,
        }
    }

    fn happens(&mut self, event: &Event) {
        match event {
            Event::DesiredState(desired_state) => {
                let paused = self.case.spec.paused;
                self.case.spec = spec(desired_state);
                self.case.spec.paused = paused;
            }
            Event::Request(verb_) => self.request(*verb_),
            Event::Starts => {
                let clock = self.clock;
                if let Some(i) = self
                    .case
                    .instance
                    .as_mut()
                    .filter(|i| i.phase == Phase::Pending)
                {
                    i.phase = Phase::Running;
                    i.started_at = Some(later(clock));
                }
            }
            Event::Ends(how) => self.end(how),
            Event::Deleted => {
                if let Some(i) = &mut self.case.instance {
                    i.deleting = true;
                }
            }
            Event::Vanishes => self.case.instance = None,
            Event::Passes(seconds) => self.clock += seconds,
            Event::Looked => {
                self.reconcile();
            }
            Event::Dies => self.case.status = self.decide().status,
        }
    }

    fn request(&mut self, verb_: Verb) {
        let case = &mut self.case;
        let requested = verb(
            &case.spec,
            &case.status,
            &case.meta,
            case.instance.as_ref(),
            verb_,
        );
        let Ok(change) = requested else {
            return;
        };
        if let Some(desired_state) = change.desired_state {
            self.desired_state(desired_state);
        }
        if change.remember.is_some() || change.forget {
            self.case.meta.resume = change.remember;
        }
        if let Some(paused) = change.paused {
            self.case.spec.paused = paused;
        }
        if let Some(requests) = change.requests {
            self.case.status.state_change_requests = requests;
            self.case.status.start_failure = None;
        }
    }

    fn desired_state(&mut self, desired_state: DesiredState) {
        let spec = &mut self.case.spec;
        (spec.power_state, spec.run_strategy, spec.running) = (None, None, None);
        match desired_state {
            DesiredState::PowerState(state) => spec.power_state = Some(state),
            DesiredState::RunStrategy(strategy) => spec.run_strategy = Some(strategy),
            DesiredState::Running(running) => spec.running = Some(running),
        }
    }

    fn end(&mut self, how: &str) {
        let Some(old) = self.case.instance.clone().filter(|i| !i.phase.is_final()) else {
            return;
        };
        self.case.instance = instance(how).map(|i| Instance {
            uid: old.uid,
            deleting: old.deleting,
            ..i
        });
    }

    fn decide(&self) -> Decision {
        desired(&self.case.machine(), &later(self.clock), Jitter::default())
    }

    /// One pass of the controller, with what the cluster makes of it.
    fn reconcile(&mut self) -> Decision {
        let decision = self.decide();
        self.case.status = decision.status.clone();
        match &decision.action {
            Action::Create { paused, .. } => {
                assert!(self.case.instance.is_none(), "two instances");
                self.born += 1;
                let paused = paused.then(|| "PausedByUser".to_owned());
                self.case.instance = instance("pending").map(|i| Instance {
                    uid: format!("pod-{}", self.born),
                    paused,
                    ..i
                });
            }
            Action::Delete { uid, .. } => {
                let instance = self.case.instance.as_mut().unwrap();
                assert_eq!(&instance.uid, uid);
                instance.deleting = true;
            }
            Action::Shutdown { .. } => self.end("succeeded/ran"),
            Action::Save { .. } => {
                self.end("succeeded/ran");
                self.case.instance.as_mut().unwrap().end = Some(EndCause::Saved);
            }
            Action::DiscardSaved => self.case.status.power_state = Some(PowerState::PoweredOff),
            Action::Patch(Patch::DesiredState(desired_state)) => {
                self.desired_state(*desired_state);
                self.case.meta.resume = None;
            }
            Action::Patch(Patch::Paused) => self.case.spec.paused = true,
            Action::Pause { .. } => {
                self.case.instance.as_mut().unwrap().paused = Some("PausedByUser".into())
            }
            Action::Unpause { .. } => self.case.instance.as_mut().unwrap().paused = None,
            Action::Nothing | Action::Wait(_) => {}
            Action::RemoveFinalizer => panic!("this machine is not being deleted"),
        }
        if decision.release {
            let instance = self.case.instance.as_ref().unwrap();
            assert!(instance.phase.is_final(), "released before its end");
            let recorded = self.case.status.instance.as_ref().unwrap();
            assert_eq!(
                (&recorded.uid, recorded.phase.as_deref()),
                (&instance.uid, Some(instance.phase.as_str()))
            );
        }
        decision
    }

    /// Nothing happens any more but what has to: pods start, those that are deleted end and go,
    /// time passes.
    fn settles(&mut self) {
        for _ in 0..60 {
            let written = self.case.status.clone();
            let decision = self.reconcile();
            let before = self.case.instance.clone();
            match &self.case.instance {
                Some(i) if i.deleting && i.phase.is_final() => self.case.instance = None,
                Some(i) if i.deleting => self.end("failed/ran"),
                Some(i) if i.phase == Phase::Pending => self.happens(&Event::Starts),
                _ => {}
            }
            self.clock += decision
                .requeue
                .map_or(1, |d| i64::try_from(d.as_secs()).unwrap().max(1));
            let is_quiet = matches!(decision.action, Action::Nothing)
                && before == self.case.instance
                && written == self.case.status;
            if is_quiet && decision.requeue.is_none() {
                assert_eq!(self.decide().status, self.case.status, "writes without end");
                return;
            }
        }
        panic!("never comes to rest: {:?}\n{:?}", self.case, self.decide());
    }
}

/// 2,000, or as many as `PROPTEST_CASES` requests.
fn cases() -> u32 {
    let is_set = std::env::var_os("PROPTEST_CASES").is_some();
    let requested = ProptestConfig::default().cases;
    if is_set { requested } else { 2000 }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_machine_has_one_instance_and_reaches_its_desired_state(history in events()) {
        let mut world = World::new();
        for event in &history {
            world.happens(event);
        }
        world.settles();
        let case = &world.case;
        let wanted = desired_power_state(&case.spec, &case.status, case.instance.as_ref()).unwrap();
        let runs = case.instance.as_ref().is_some_and(|i| i.phase == Phase::Running);
        prop_assert_eq!(runs, wanted == PowerState::PoweredOn, "{:?}", case);
        prop_assert_eq!(&case.status.state_change_requests, &vec![], "{:?}", case);
        if runs {
            let is_paused = case.instance.as_ref().is_some_and(|i| i.paused.is_some());
            prop_assert_eq!(is_paused, case.spec.paused);
        }
    }

    #[test]
    fn a_stop_is_never_lost(history in events(), strategy in select(vec!["Always", "RerunOnFailure", "Manual", "Once", "true", "PoweredOn"])) {
        let mut world = World::new();
        for event in &history {
            world.happens(event);
        }
        world.happens(&Event::DesiredState(strategy));
        world.reconcile();
        let case = &world.case;
        let stop = Verb::Stop { grace_seconds: None };
        let requested = verb(&case.spec, &case.status, &case.meta, case.instance.as_ref(), stop);
        // The one stop that cannot be done is refused with advice.
        prop_assume!(!requested.is_err_and(|e| e.to_string().contains("first start")));
        world.request(stop);
        world.settles();
        let runs = world.case.instance.as_ref().is_some_and(|i| i.phase == Phase::Running);
        prop_assert!(!runs, "runs: {:?}", world.case);
    }
}
