//! Kills: what was answered is there, once; what was not can be sent again.

use std::time::Duration;

use futures_util::future::join_all;

use super::world::{Answer, Service, batch, measurement, of, submit};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn d12_killed_anywhere_no_measurement_is_lost_or_doubled() {
    const EACH: usize = 12;
    const KILLS: u64 = 5;
    let mut service = Service::start("killed");
    let single = |n: usize| {
        let body = measurement(&format!("m{n}"), 0);
        submit("ada", &body).key(&format!("single-{n}"))
    };
    let mut answered: Vec<Option<Answer>> = vec![None; EACH];
    for round in 0..KILLS {
        let listen = service.listen;
        let sent: Vec<_> = (0..EACH).map(|n| tokio::spawn(single(n).try_send(listen))).collect();
        // sleeps because the point of the kill is to be any
        tokio::time::sleep(Duration::from_millis(round * 7)).await;
        service.kill();
        for (place, answer) in answered.iter_mut().zip(join_all(sent).await) {
            if let Some(answer) = answer.unwrap() {
                let answer = answer.must_be(201);
                if let Some(first) = place {
                    assert_eq!(answer.body, first.body, "the first answer stands");
                }
                *place = Some(answer);
            }
        }
        service = service.started_again();
    }
    for (n, place) in answered.iter().enumerate() {
        let answer = single(n).send(&service).await.must_be(201);
        if let Some(first) = place {
            assert_eq!(answer.body, first.body);
        }
    }
    assert_eq!(service.listed("ada").await.len(), EACH);
    let actions = service.actions("ada").await;
    assert_eq!(actions.iter().filter(|action| *action == "accepted").count(), EACH, "{actions:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn d12_a_batch_that_was_killed_is_sent_again_and_ends_as_it_should() {
    let mut service = Service::start("killed_batch");
    let items: Vec<_> =
        (0..2_000).map(|n| of(&format!("u{}", n % 9), &format!("m{n}"), n)).collect();
    for round in 0..3_u64 {
        let sent = tokio::spawn(batch(&items).keyless().try_send(service.listen));
        // sleeps because the point of the kill is to be any
        tokio::time::sleep(Duration::from_millis(20 + round * 40)).await;
        service.kill();
        let _ = sent.await.unwrap();
        service = service.started_again();
    }
    let answer = batch(&items).send(&service).await;
    for status in answer.statuses() {
        assert!(status == "accepted" || status == "duplicate", "{status}");
    }
    let mut listed = 0;
    for user in 0..9 {
        let user = format!("u{user}");
        let found = service.listed(&user).await.len();
        // The audit tells of each accepted one exactly once.
        let actions = service.actions(&user).await;
        let accepted = actions.iter().filter(|action| *action == "accepted").count();
        assert_eq!(found, accepted, "{user}");
        listed += found;
    }
    assert_eq!(listed, items.len());
}
