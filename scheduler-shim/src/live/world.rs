//! The model in a small world of its own: an API server, agents, and everything that may go wrong between
//! them in any order, with the scheduler killed at any moment.
//!
//! Events and effects wait in queues and are delivered when the test says so, so that every answer may be
//! late. What the world keeps is what the API server and the agents keep in fact; the model is the real one.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use serde_json::{Value, json};

use super::agents::{Card, Held, Said, Stage};
use super::event::{Effect, Event, PodRef};
use super::model::Model;
use crate::objects::cards;
use apportion_abi::Bytes;

mod random;

const CARD: u64 = 1000 << 20;
const NODES: [&str; 2] = ["a", "b"];
const CARDS: usize = 2;
/// What pods ask for: parts of a card in per cent; a hundred is a whole card.
const ASKS: [u64; 6] = [10, 30, 50, 60, 90, 100];

#[derive(Clone, Debug)]
struct Pod {
    object: Value,
    ask: u64,
}

#[derive(Clone, Debug, Default)]
struct Agent {
    held: Vec<(Held, Duration)>,
    effects: VecDeque<Effect>,
}

struct World {
    now: Duration,
    pods: BTreeMap<String, Pod>,
    groups: Vec<Value>,
    agents: BTreeMap<String, Agent>,
    model: Model,
    events: VecDeque<Event>,
    api: Vec<Effect>,
    made: usize,
}

fn uuid(node: &str, card: usize) -> String {
    format!(
        "GPU-0000000{}-0000-0000-0000-00000000000{card}",
        usize::from(node == "b")
    )
}

impl World {
    fn new() -> Self {
        let mut world = Self {
            now: Duration::from_secs(1_000_000),
            pods: BTreeMap::new(),
            groups: Vec::new(),
            agents: NODES.map(|node| (node.to_owned(), Agent::default())).into(),
            model: Model::new(vec!["kai-scheduler".to_owned()]),
            events: VecDeque::new(),
            api: Vec::new(),
            made: 0,
        };
        world.start_scheduler();
        world
    }

    /// A scheduler that knows what can be known.
    fn start_scheduler(&mut self) {
        self.model = Model::new(vec!["kai-scheduler".to_owned()]);
        self.events.clear();
        self.api.clear();
        self.agents
            .values_mut()
            .for_each(|agent| agent.effects.clear());
        let node = |name: &&str| {
            let room = json!({"cpu": "64", "memory": "64Gi", "pods": "100"});
            json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "uid": name},
                "status": {"allocatable": room, "conditions": [{"type": "Ready", "status": "True"}]}})
        };
        let bound = json!({"quota": -1, "limit": -1, "overQuotaWeight": 1});
        let queue = json!({"apiVersion": "scheduling.run.ai/v2", "kind": "Queue",
            "metadata": {"name": "default-queue", "uid": "q"},
            "spec": {"resources": {"gpu": bound, "cpu": bound, "memory": bound}}});
        self.tell(Event::Listed(
            "Node".to_owned(),
            NODES.iter().map(node).collect(),
        ));
        self.tell(Event::Listed("Queue".to_owned(), vec![queue]));
        let groups = self.groups.clone();
        self.tell(Event::Listed("PodGroup".to_owned(), groups));
        let pods = self.pods.values().map(|pod| pod.object.clone()).collect();
        self.tell(Event::Listed("Pod".to_owned(), pods));
        for node in NODES {
            let said = self.said(node);
            self.tell(Event::AgentSaid(node.to_owned(), said));
        }
    }

    fn said(&self, node: &str) -> Said {
        let card = |card: usize| Card {
            uuid: uuid(node, card),
            allocatable: Bytes(CARD),
            unmanaged: Bytes::ZERO,
            is_healthy: true,
        };
        Said {
            cards: (0..CARDS).map(card).collect(),
            held: self.agents[node]
                .held
                .iter()
                .map(|(held, _)| held.clone())
                .collect(),
        }
    }

    fn tell(&mut self, event: Event) {
        let effects = self.model.apply(self.now, event);
        self.queue(effects);
    }

    fn queue(&mut self, effects: Vec<Effect>) {
        for effect in effects {
            match &effect {
                Effect::Allocate { node, .. }
                | Effect::Commit { node, .. }
                | Effect::Release { node, .. } => {
                    let agent = self.agents.get_mut(node).expect("the node is there");
                    agent.effects.push_back(effect);
                }
                Effect::Bind { .. } => self.api.push(effect),
                Effect::Evict(pod) => panic!("{} is evicted, and nobody may be", pod.full()),
                Effect::Tell { .. } | Effect::Silent { .. } | Effect::Report(_) => {}
            }
        }
    }

    fn create(&mut self, ask: u64, is_gang: bool) {
        let size = if is_gang { 2 } else { 1 };
        let group = self.made;
        if self.pods.len() + size > 20 {
            return;
        }
        for _ in 0..size {
            self.made += 1;
            let name = format!("p{}", self.made);
            let mut object = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name,
                    "namespace": "default", "uid": format!("uid-{name}"), "annotations": {},
                    "labels": {"kai.scheduler/queue": "default-queue",
                        "kai.scheduler/preemptibility": "non-preemptible"}},
                "spec": {"schedulerName": "kai-scheduler", "containers": [{"name": "main"}]},
                "status": {"phase": "Pending"}});
            if ask == 100 {
                object["spec"]["containers"][0]["resources"] =
                    json!({"limits": {"nvidia.com/gpu": 1}});
            } else {
                object["metadata"]["annotations"]["gpu-fraction"] = format!("0.{ask:02}").into();
            }
            if is_gang {
                object["metadata"]["annotations"]["pod-group-name"] = format!("g{group}").into();
            }
            self.events.push_back(Event::Applied(object.clone()));
            self.pods.insert(name, Pod { object, ask });
        }
        if is_gang {
            let group = json!({"apiVersion": "scheduling.run.ai/v2alpha2", "kind": "PodGroup",
                "metadata": {"name": format!("g{group}"), "namespace": "default", "uid": format!("g{group}")},
                "spec": {"minMember": 2, "queue": "default-queue", "preemptibility": "non-preemptible"}});
            self.groups.push(group.clone());
            self.events.push_back(Event::Applied(group));
        }
    }

    fn delete(&mut self, which: usize) {
        let Some(name) = self.pods.keys().nth(which).cloned() else {
            return;
        };
        let pod = self.pods.remove(&name).expect("it is there");
        self.events.push_back(Event::Gone(pod.object));
    }

    fn wait(&mut self, long: Duration) {
        self.now += long;
        for node in NODES {
            let now = self.now;
            let agent = self.agents.get_mut(node).expect("it is there");
            let before = agent.held.len();
            agent
                .held
                .retain(|(held, until)| held.stage != Stage::Reserved || now < *until);
            if agent.held.len() != before {
                self.show(node);
            }
        }
    }

    fn show(&mut self, node: &str) {
        let said = self.said(node);
        self.events
            .push_back(Event::AgentSaid(node.to_owned(), said));
    }

    fn agent_effect(&mut self, node: &str, fails: bool) {
        let agent = self.agents.get_mut(node).expect("it is there");
        let Some(effect) = agent.effects.pop_front() else {
            return;
        };
        match effect {
            Effect::Allocate { pod, shares, .. } => {
                let answer = agent.allocate(self.now, &pod, shares);
                // The answer may be lost while the allocation is not.
                let answer = if fails {
                    Err("lost".to_owned())
                } else {
                    answer
                };
                self.events.push_back(match answer {
                    Ok(id) => Event::Accepted(pod, id),
                    Err(why) => Event::Refused(pod, why),
                });
            }
            Effect::Commit { id, .. } if !fails => {
                for (held, _) in agent.held.iter_mut().filter(|(held, _)| held.id == id) {
                    held.stage = Stage::Allocated;
                }
            }
            Effect::Release { id, .. } if !fails => agent.held.retain(|(held, _)| held.id != id),
            _ => {}
        }
        self.show(node);
    }

    fn bind(&mut self, effect: Effect, fails: bool) {
        let Effect::Bind {
            node, pod, cards, ..
        } = effect
        else {
            return;
        };
        let there = self.pods.get_mut(&pod.name);
        let there = there.filter(|there| there.object["metadata"]["uid"] == pod.uid.as_str());
        let Some(there) =
            there.filter(|there| !fails && there.object["spec"]["nodeName"].is_null())
        else {
            self.events.push_back(Event::NotBound(pod, "no".to_owned()));
            return;
        };
        there.object["spec"]["nodeName"] = node.into();
        there.object["metadata"]["annotations"][cards::CARDS] = cards::text(&cards).into();
        if there.ask < 100 {
            there.object["metadata"]["labels"]["runai-gpu-group"] = cards[0].0.as_str().into();
        }
        self.events.push_back(Event::Applied(there.object.clone()));
        self.events.push_back(Event::Bound(pod));
    }

    /// What the API server says about the cards: never more on one than it has.
    fn is_within_cards(&self) -> bool {
        let mut sums: BTreeMap<&str, u64> = BTreeMap::new();
        for pod in self.pods.values() {
            if let Some(card) = pod.object["metadata"]["labels"]["runai-gpu-group"].as_str() {
                *sums.entry(card).or_default() += pod.ask;
            }
        }
        sums.values().all(|sum| *sum <= 100)
    }

    /// Lets everything happen that is under way, and what follows, until nothing does.
    fn settle(&mut self) {
        for _ in 0..40 {
            while let Some(event) = self.events.pop_front() {
                self.tell(event);
            }
            for node in NODES {
                while !self.agents[node].effects.is_empty() {
                    self.agent_effect(node, false);
                }
            }
            while let Some(effect) = self.api.pop() {
                self.bind(effect, false);
            }
            if self.events.is_empty() {
                self.wait(Duration::from_secs(61));
                for node in NODES {
                    self.show(node);
                }
                while let Some(event) = self.events.pop_front() {
                    self.tell(event);
                }
                let effects = self.model.decide(self.now);
                self.queue(effects);
            }
        }
        assert!(
            self.model.starts.all().next().is_none(),
            "somebody is on the way for ever"
        );
    }

    fn is_bound(pod: &Pod) -> bool {
        pod.object["spec"]["nodeName"].is_string()
    }

    /// Both books agree, and nobody waits who would fit.
    fn check(&self) {
        let mut free: Vec<u64> = Vec::new();
        for (node, agent) in &self.agents {
            let mut left = [CARD; CARDS];
            for (held, _) in &agent.held {
                let uid = held.uid.as_deref().unwrap_or_default();
                let pod = self
                    .pods
                    .values()
                    .find(|pod| pod.object["metadata"]["uid"] == uid);
                let pod = pod.unwrap_or_else(|| panic!("{uid} is gone and holds {held:?}"));
                assert!(Self::is_bound(pod), "{uid} holds {held:?} and is not bound");
                assert_eq!(
                    held.stage,
                    Stage::Allocated,
                    "{uid} is bound and not committed"
                );
                for (card, bytes) in &held.shares {
                    let place = (0..CARDS).find(|place| uuid(node, *place) == *card);
                    left[place.expect("a card of the node")] -= bytes;
                }
            }
            free.extend(left);
        }
        let held = self
            .agents
            .values()
            .map(|agent| agent.held.len())
            .sum::<usize>();
        let bound = self.pods.values().filter(|pod| Self::is_bound(pod)).count();
        assert_eq!(held, bound, "a pod runs without its agent's knowledge");
        for pod in self.pods.values().filter(|pod| !Self::is_bound(pod)) {
            let is_alone = pod.object["metadata"]["annotations"]["pod-group-name"].is_null();
            let fits = free.iter().any(|free| CARD / 100 * pod.ask <= *free);
            assert!(
                !(is_alone && fits),
                "{} waits, and {free:?} is free",
                pod.object["metadata"]["name"]
            );
        }
    }
}

impl Agent {
    fn allocate(
        &mut self,
        now: Duration,
        pod: &PodRef,
        shares: Vec<(String, u64)>,
    ) -> Result<String, String> {
        let known = self
            .held
            .iter()
            .find(|(held, _)| held.uid.as_deref() == Some(&pod.uid));
        if let Some((held, _)) = known {
            let cards = |shares: &[(String, u64)]| {
                shares
                    .iter()
                    .map(|(card, _)| card.clone())
                    .collect::<Vec<_>>()
            };
            return match cards(&held.shares) == cards(&shares) {
                true => Ok(held.id.clone()),
                false => Err("the key was used for something else".to_owned()),
            };
        }
        for (card, bytes) in &shares {
            let all = self.held.iter().flat_map(|(held, _)| &held.shares);
            let taken: u64 = all
                .filter(|(other, _)| other == card)
                .map(|(_, bytes)| bytes)
                .sum();
            if taken + bytes > CARD {
                return Err("the card is full".to_owned());
            }
        }
        let id = format!("{}-{}", pod.name, now.as_secs());
        let held = Held {
            id: id.clone(),
            uid: Some(pod.uid.clone()),
            name: pod.full(),
            stage: Stage::Reserved,
            shares,
        };
        self.held.push((held, now + Duration::from_secs(60)));
        Ok(id)
    }
}
