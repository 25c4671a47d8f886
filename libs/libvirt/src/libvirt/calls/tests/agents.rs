//! Calls to agents: slow ones, and orders that wait for no slow agent.
//!
//! Invariant: the clock is paused; no call reaches libvirt.
//! Failure: the assertion shows the permits that are left.

use super::*;

/// A command to the agent of a guest that answers late.
fn slow_agent(lane: Lane, domain: Uuid) -> Plan {
    let context = Context {
        call: "test",
        domain: Some(domain),
    };
    Plan {
        context,
        ..plan(lane, LONG, LONG)
    }
}

#[tokio::test(start_paused = true)]
async fn slow_agents_of_one_namespace_leave_a_permit_to_others() {
    let hv = connected(2).await;
    for domain in [HUNG, DOMAIN] {
        hv.set_namespace(domain, &"slow".into());
    }
    hv.set_namespace(HEALTHY, &"other".into());
    let first = Hanging::begin(&hv, slow_agent(Lane::Agents, HUNG)).await;
    let second = {
        let calls = Arc::clone(&hv.calls);
        let plan = slow_agent(Lane::Agents, DOMAIN);
        tokio::spawn(async move { calls.run(plan, |_| Ok(())).await })
    };
    tokio::task::yield_now().await;
    let other = slow_agent(Lane::Agents, HEALTHY);
    hv.calls.run(other, |_| Ok(())).await.unwrap();
    assert!(!second.is_finished());
    first.end().await.unwrap();
    second.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_order_to_power_off_waits_for_no_slow_agent_and_its_time_begins_with_its_permit() {
    let hv = connected(1).await;
    let mut slow = Vec::new();
    for lane in [Lane::Agents, Lane::UnresponsiveAgents] {
        slow.push(Hanging::begin(&hv, slow_agent(lane, HUNG)).await);
    }
    let order = || {
        let hv = hv.clone();
        tokio::spawn(async move { hv.shutdown(DOMAIN, crate::Shutdown::Agent).await })
    };
    let no_agent = |answer: Result<()>| matches!(answer, Err(Error::NoAgent { .. }));
    // The guests of this driver have no agents: an order that gets a permit ends with that.
    assert!(no_agent(order().await.unwrap()));

    let other = Hanging::begin(&hv, slow_agent(Lane::AgentOrders, HUNG)).await;
    let late = order();
    while !hv.calls.turns.is_taken(Key::Agent(DOMAIN)) {
        tokio::task::yield_now().await;
    }
    // More than a guest has for the ping.
    tokio::time::advance(Duration::from_secs(3)).await;
    other.end().await.unwrap();
    assert!(no_agent(late.await.unwrap()));
    for slow in slow {
        slow.end().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn an_order_waits_for_its_guest_and_for_other_orders_together_and_can_be_repeated() {
    let hv = connected(1).await;
    let other = Hanging::begin(&hv, slow_agent(Lane::AgentOrders, HUNG)).await;
    let command = hv.calls.turns.take(Key::Agent(DOMAIN)).await;
    let order = {
        let hv = hv.clone();
        tokio::spawn(async move { hv.shutdown(DOMAIN, crate::Shutdown::Agent).await })
    };
    while !hv.calls.turns.is_waited_for(Key::Agent(DOMAIN)) {
        tokio::task::yield_now().await;
    }
    tokio::time::advance(Duration::from_secs(3)).await;
    drop(command);
    for _ in 0..10 {
        tokio::task::yield_now().await;
    }
    assert!(!order.is_finished());
    tokio::time::advance(Duration::from_secs(3)).await;
    for _ in 0..10 {
        tokio::task::yield_now().await;
    }
    assert!(order.is_finished(), "it has waited for six seconds");
    let error = order.await.unwrap().unwrap_err();
    assert!(matches!(error, Error::Busy { .. }), "{error}");
    assert!(error.is_unavailable());
    assert!(!hv.calls.turns.is_taken(Key::Agent(DOMAIN)));
    other.end().await.unwrap();
}
