//! The states that tasks had before they were changed: what a rollback sets again.

use crate::task_state::TaskState;

/// The changes since the last commit, oldest first.
#[derive(Debug, Default)]
pub(super) struct UndoLog(Vec<(usize, TaskState)>);

/// A point to return to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Checkpoint(usize);

impl Checkpoint {
    pub(crate) const LAST_COMMIT: Self = Self(0);
}

impl UndoLog {
    pub(super) fn mark(&self) -> Checkpoint {
        Checkpoint(self.0.len())
    }

    pub(super) fn push(&mut self, task: usize, before: TaskState) {
        self.0.push((task, before));
    }

    /// The state of a task before its first change.
    pub(super) fn first(&self, task: usize) -> Option<&TaskState> {
        let found = self.0.iter().find(|(changed, _)| *changed == task);
        found.map(|(_, before)| before)
    }

    /// Takes the last change since `mark`: the task, and its state before.
    pub(super) fn pop_after(&mut self, mark: Checkpoint) -> Option<(usize, TaskState)> {
        if self.0.len() <= mark.0 {
            return None;
        }
        self.0.pop()
    }

    /// Forgets all changes, and returns the changed tasks.
    pub(super) fn clear(&mut self) -> impl Iterator<Item = usize> + use<> {
        let changes = std::mem::take(&mut self.0);
        changes.into_iter().map(|(task, _)| task)
    }

    /// The tasks that changed since `mark`, each once.
    pub(super) fn tasks_since(&self, mark: Checkpoint) -> Vec<usize> {
        let mut tasks: Vec<usize> = self.0[mark.0..].iter().map(|(task, _)| *task).collect();
        tasks.sort_unstable();
        tasks.dedup();
        tasks
    }
}
