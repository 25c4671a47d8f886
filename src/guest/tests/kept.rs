//! Sessions that the guest keeps.

use guestapi::{Confinement, Start};

use super::*;

const NAME: &str = "0123456789abcdef";

fn kept() -> Start {
    Start {
        command: words(&["x"]),
        keep: NAME.to_owned(),
        ..Start::default()
    }
}

fn output(session: u64, length: usize) -> Data {
    Data {
        session,
        stream: Stream::Stdout.into(),
        data: vec![7; length].into(),
        end: false,
    }
}

#[tokio::test]
async fn an_older_agent_serves_what_it_has() {
    let port = Port::new();
    let (agent, mut guest) = port.of_version(1).await;
    let confined = Start {
        command: words(&["x"]),
        confinement: Some(Confinement::default()),
        ..Start::default()
    };
    for start in [kept(), confined] {
        let refused = agent.run(start).await.unwrap_err();
        assert!(refused.to_string().contains("too old"), "{refused}");
    }
    let play = async {
        let session = guest.start().await;
        guest
            .send(Exited {
                session,
                code: 3,
                ..Exited::default()
            })
            .await;
    };
    let (command, ()) = tokio::join!(agent.start(words(&["x"]), false, None), play);
    assert_eq!(
        command.unwrap().ended.wait().await.map(|end| end.code),
        Ok(3)
    );
}

#[tokio::test]
async fn output_is_acknowledged_after_it_was_stored() {
    let port = Port::new();
    let (agent, mut guest) = port.hostile().await;
    let (command, session) = tokio::join!(agent.run(kept()), guest.start());
    let mut command = command.unwrap();
    for _ in 0..3 {
        guest.send(output(session, 16 << 10)).await;
    }
    let mut buffer = vec![0; WINDOW];
    let mut length = 0;
    while length < 48 << 10 {
        length += command.stdout.read(&mut buffer).await.unwrap();
    }
    // Nothing was acknowledged: the next message is that of another command.
    let (other, _) = tokio::join!(agent.start(words(&["y"]), false, None), guest.start());
    command.stdout.acknowledge(length);
    let Kind::Credit(credit) = guest.next().await else {
        panic!("something else");
    };
    assert_eq!((credit.session, credit.bytes), (session, 48 << 10));
    drop(other);
}

#[tokio::test]
async fn a_kept_session_outlives_its_reader_and_is_adopted() {
    let port = Port::new();
    let (agent, mut guest) = port.hostile().await;
    let (command, _) = tokio::join!(agent.run(kept()), guest.start());
    drop(command.unwrap());
    let play = async {
        let Kind::Adopt(adopt) = guest.next().await else {
            panic!("something else, such as the end of the session");
        };
        assert_eq!(
            (adopt.keep.as_str(), adopt.stdout, adopt.stderr),
            (NAME, 5, 6)
        );
        let session = adopt.session;
        guest.send(Started { session, pid: 1 }).await;
        guest.send(output(session, 4)).await;
        guest
            .send(Exited {
                session,
                code: 0,
                ..Exited::default()
            })
            .await;
    };
    let (command, ()) = tokio::join!(agent.adopt(NAME, (5, 6)), play);
    let mut command = command.unwrap();
    assert_eq!(all(&mut command.stdout).await, [7; 4]);
    assert_eq!(command.ended.wait().await.map(|end| end.code), Ok(0));
    command.control.close();
    let Kind::Close(_) = guest.next().await else {
        panic!("the guest keeps the session");
    };
}
