//! Greetings of agents that start, start again, or do not answer.
//!
//! Invariant: the test plays the guest.
//! Failure: the assertion shows what the guest got.

use super::*;

#[tokio::test]
async fn an_agent_that_starts_again_is_greeted_and_its_commands_are_lost() {
    let port = Port::new();
    let (agent, mut guest) = port.hostile().await;
    let (command, _) = tokio::join!(agent.start(words(&["x"]), true, None), guest.start());
    let mut command = command.unwrap();
    guest.send(GuestHello::default()).await;
    assert_eq!(
        command.ended.wait().await.map(|end| end.code),
        Err(Error::Lost)
    );
    let Kind::HostHello(hello) = guest.next().await else {
        panic!("something else");
    };
    let other = GuestHello {
        version: VERSION,
        connection: hello.connection ^ 1,
        program: String::new(),
        watches_freezes: true,
    };
    guest.send(other.clone()).await;
    let none = port
        .guests
        .agent(&port.id, &port.socket, Duration::ZERO)
        .await;
    assert!(none.is_none(), "an answer to another greeting");
    let incompatible = GuestHello {
        version: 0,
        connection: hello.connection,
        ..other
    };
    guest.send(incompatible).await;
    let none = port.guests.agent(&port.id, &port.socket, SOON).await;
    assert!(none.is_none(), "no version in common");
}

#[tokio::test(start_paused = true)]
async fn a_guest_without_agent_is_waited_for_once() {
    let port = Port::new();
    let patience = Duration::from_secs(2);
    let begin = tokio::time::Instant::now();
    for _ in 0..10 {
        assert!(
            port.guests
                .agent(&port.id, &port.socket, patience)
                .await
                .is_none()
        );
    }
    assert_eq!(begin.elapsed().as_secs(), 2);
    let missing = MachineSocket {
        path: port.socket.path.with_extension("missing"),
        ..port.socket
    };
    let other = ContainerId::generate();
    assert!(
        port.guests
            .agent(&other, &missing, patience)
            .await
            .is_none()
    );
}

#[tokio::test]
async fn a_greeting_without_an_answer_is_repeated() {
    let port = Port::new();
    let first = port.guests.agent(&port.id, &port.socket, Duration::ZERO);
    let (none, socket) = tokio::join!(first, port.accept());
    assert!(none.is_none());
    let mut guest = Guest {
        socket,
        decoder: Decoder::new(MAX_FRAME),
        received: Vec::new(),
    };
    let Kind::HostHello(lost) = guest.next().await else {
        panic!("no greeting");
    };
    // Each request for the agent greets again, not too often.
    let play = async {
        let Kind::HostHello(hello) = guest.next().await else {
            panic!("no second greeting");
        };
        assert_ne!(hello.connection, lost.connection);
        for connection in [lost.connection, hello.connection] {
            guest
                .send(GuestHello {
                    version: VERSION,
                    connection,
                    program: connection.to_string(),
                    watches_freezes: true,
                })
                .await;
        }
        hello.connection
    };
    let ask = async {
        loop {
            let agent = port.guests.agent(&port.id, &port.socket, Duration::ZERO);
            match agent.await {
                Some(agent) => return agent,
                None => tokio::task::yield_now().await,
            }
        }
    };
    let (connection, agent) = tokio::join!(play, ask);
    assert_eq!(
        agent.version,
        connection.to_string(),
        "the answer to the first one"
    );
}

#[tokio::test]
async fn an_agent_that_answers_no_probe_loses_its_commands() {
    let port = Port::new();
    let (agent, mut guest) = port.hostile().await;
    assert_eq!(port.guests.probe(), [], "it is not in use");
    let (command, session) = tokio::join!(agent.start(words(&["x"]), true, None), guest.start());
    let mut command = command.unwrap();
    let silent = |is_over| {
        [Silent {
            machine: port.id.clone(),
            is_over,
        }]
    };

    assert_eq!(port.guests.probe(), [], "it had nothing to answer");
    let Kind::Request(probe) = guest.next().await else {
        panic!("something else");
    };
    assert_eq!(probe.action, None);
    assert_eq!(port.guests.probe(), silent(false));
    guest
        .send(Answer {
            number: probe.number,
            ..Answer::default()
        })
        .await;
    guest
        .send(Data {
            session,
            stream: Stream::Stdout.into(),
            data: Bytes::from_static(b"x"),
            end: false,
        })
        .await;
    command.stdout.read(&mut [0]).await.unwrap();
    assert_eq!(port.guests.probe(), [], "it has answered");

    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(600)).await;
    tokio::time::resume();
    assert_eq!(port.guests.probe(), silent(true));
    port.guests.excuse(&port.id);
    assert_eq!(port.guests.probe(), [], "its guest was paused");
    assert!(!port.guests.end_silent(&port.id), "its time begins again");
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(600)).await;
    tokio::time::resume();
    assert!(port.guests.end_silent(&port.id));
    assert_eq!(
        command.ended.wait().await.map(|end| end.code),
        Err(Error::Lost)
    );
    assert_eq!(port.guests.probe(), [], "there is no connection");
}
