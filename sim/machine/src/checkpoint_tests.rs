use super::*;
use crate::{DriverGeneration, MachineConfig, MachineLocation, MachineRequest, PeerIdentity};

const GIB: u64 = 1 << 30;
const CONTROLLER: Pid = 1;
const PROGRAM: Pid = 2;
const OTHER: Pid = 3;

fn machine() -> Machine {
    let config = MachineConfig::uniform(2, 16 * GIB, DriverGeneration::R580);
    let mut machine = Machine::new(config).expect("the machine can be");
    for pid in [CONTROLLER, PROGRAM, OTHER] {
        machine.process_came(pid, PeerIdentity::default());
        machine.set_restore_thread(pid, pid + 100);
    }
    machine
}

fn allocated(machine: &mut Machine, pid: Pid, card: usize, bytes: u64) {
    let MachineReply::Created(context) = machine
        .apply(pid, MachineRequest::PrimaryRetain(card))
        .reply
    else {
        panic!("the card has room for a context");
    };
    let reply = machine.apply(pid, MachineRequest::Allocate { context, bytes });
    assert!(matches!(reply.reply, MachineReply::Allocated { .. }));
}

fn change(
    machine: &mut Machine,
    from: CheckpointState,
    to: CheckpointState,
) -> Result<(), CudaRefusal> {
    machine.begin_operation(CONTROLLER, PROGRAM, from)?;
    machine.end_operation(PROGRAM, Some(to))
}

fn state(machine: &mut Machine) -> MachineReply {
    machine
        .apply(CONTROLLER, MachineRequest::ProcessState(PROGRAM))
        .reply
}

#[test]
fn a_checkpointed_process_holds_nothing_and_has_all_of_it_again_when_restored() {
    let mut machine = machine();
    allocated(&mut machine, PROGRAM, 0, 5 * GIB);
    allocated(&mut machine, PROGRAM, 1, 3 * GIB);
    let before = [0, 1].map(|card| machine.cards[card].held_by(PROGRAM));
    let bytes = machine.bytes_to_checkpoint(PROGRAM);
    assert_eq!(bytes, Ok(before.iter().sum()));
    machine.move_to_host(PROGRAM);
    assert_eq!([0, 1].map(|card| machine.cards[card].used()), [0, 0]);
    let copies = machine.apply(CONTROLLER, MachineRequest::HostCopies(PROGRAM));
    assert_eq!(copies.reply, MachineReply::Value(before.iter().sum()));
    assert_eq!(machine.move_from_host(PROGRAM), Ok(before.iter().sum()));
    assert_eq!(
        [0, 1].map(|card| machine.cards[card].held_by(PROGRAM)),
        before
    );
}

#[test]
fn a_process_that_does_not_fit_stays_in_the_host_whole() {
    let mut machine = machine();
    allocated(&mut machine, PROGRAM, 0, GIB);
    allocated(&mut machine, PROGRAM, 1, 9 * GIB);
    machine.move_to_host(PROGRAM);
    allocated(&mut machine, OTHER, 1, 9 * GIB);
    assert_eq!(
        machine.move_from_host(PROGRAM),
        Err(CudaRefusal::OutOfMemory)
    );
    assert_eq!(machine.cards[0].used(), 0, "the other card gave nothing");
    machine.process_gone(OTHER);
    assert!(machine.move_from_host(PROGRAM).is_ok());
}

#[test]
fn memory_of_a_killed_process_is_gone_in_every_state() {
    for is_checkpointed in [false, true] {
        let mut machine = machine();
        allocated(&mut machine, PROGRAM, 0, 5 * GIB);
        if is_checkpointed {
            machine.move_to_host(PROGRAM);
        }
        machine.process_gone(PROGRAM);
        assert_eq!(machine.cards[0].used(), 0);
        assert_eq!(machine.cards[0].host_copies(PROGRAM), 0);
        assert_eq!(
            machine.end_operation(PROGRAM, None),
            Err(CudaRefusal::InvalidValue)
        );
    }
}

#[test]
fn operations_are_refused_in_every_other_state_and_while_one_is_under_way() {
    use CheckpointState::{Checkpointed, Locked, Running};
    let mut machine = machine();
    let illegal = Err(CudaRefusal::IllegalState);
    for (now, next) in [(Running, Locked), (Locked, Checkpointed)] {
        assert_eq!(state(&mut machine), MachineReply::Value(now.number()));
        for other in [Running, Locked, Checkpointed] {
            if other != now {
                assert_eq!(change(&mut machine, other, other), illegal);
            }
        }
        assert_eq!(machine.begin_operation(CONTROLLER, PROGRAM, now), Ok(()));
        assert_eq!(machine.begin_operation(CONTROLLER, PROGRAM, now), illegal);
        assert_eq!(machine.end_operation(PROGRAM, Some(next)), Ok(()));
    }
    let unknown = machine.begin_operation(CONTROLLER, 99, Running);
    assert_eq!(unknown, Err(CudaRefusal::InvalidValue));
}

#[test]
fn only_root_and_the_same_user_may_checkpoint_a_process() {
    let mut machine = machine();
    for (pid, uid) in [(10, 1000), (11, 1000), (12, 1001)] {
        let cgroup = String::new();
        machine.process_came(pid, PeerIdentity { cgroup, uid });
        machine.set_restore_thread(pid, pid);
    }
    let mut ask = |caller| {
        machine
            .apply(caller, MachineRequest::ProcessState(10))
            .reply
    };
    assert_eq!(ask(CONTROLLER), MachineReply::Value(0));
    assert_eq!(ask(11), MachineReply::Value(0));
    assert_eq!(ask(12), MachineReply::Refused(CudaRefusal::NotPermitted));
}

#[test]
fn shared_and_managed_memory_is_not_checkpointed() {
    let refused = Err(CudaRefusal::NotSupported);
    let mut managed = machine();
    let report = GateReport {
        is_done: true,
        has_managed: true,
    };
    managed.note_gate_report(PROGRAM, report);
    assert_eq!(managed.bytes_to_checkpoint(PROGRAM), refused);

    let mut sharing = machine();
    let request = MachineRequest::HandleCreate {
        location: MachineLocation::Card(0),
        bytes: GIB,
    };
    let MachineReply::Created(handle) = sharing.apply(PROGRAM, request).reply else {
        panic!("the card has room");
    };
    assert_eq!(sharing.bytes_to_checkpoint(PROGRAM), Ok(GIB));
    sharing.apply(OTHER, MachineRequest::HandleImport(handle));
    assert_eq!(sharing.bytes_to_checkpoint(PROGRAM), refused);
    assert_eq!(sharing.bytes_to_checkpoint(OTHER), refused);
    sharing.apply(OTHER, MachineRequest::HandleRelease(handle));
    assert_eq!(sharing.bytes_to_checkpoint(PROGRAM), Ok(GIB));
}
