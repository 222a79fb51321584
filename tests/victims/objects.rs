//! What a victim holds, in the order in which it got it; a script names things by that number.

/// One thing that the driver gave.
#[derive(Clone, Copy)]
pub(crate) enum VictimObject {
    /// Plain, pitched or managed memory.
    Plain(u64),
    /// Memory of a pool.
    Pooled(u64),
    /// A reference to physical memory, and its size.
    Handle(u64, usize),
    /// An address range at which physical memory is mapped, and its size.
    Mapping(u64, usize),
    /// A pool.
    Pool(usize),
    /// A module.
    Module(usize),
    /// A graph that was launched: executable, as it was made, and the address that it left allocated.
    Graph(usize, usize, u64),
    /// A green context.
    Green(usize),
    /// A library.
    Library(usize),
    /// An array, and one with mipmaps.
    Array(usize),
    Mipmaps(usize),
    /// Memory of another process.
    Opened(u64),
    /// It was given back.
    Gone,
}

/// All of them.
#[derive(Default)]
pub(crate) struct VictimObjects(Vec<VictimObject>);

impl VictimObjects {
    /// Keeps a thing and says its number.
    pub(crate) fn keep(&mut self, object: VictimObject) -> u64 {
        self.0.push(object);
        (self.0.len() - 1) as u64
    }

    /// The thing with that number.
    pub(crate) fn get(&self, number: u64) -> VictimObject {
        usize::try_from(number)
            .ok()
            .and_then(|at| self.0.get(at))
            .copied()
            .unwrap_or(VictimObject::Gone)
    }

    /// Forgets it.
    pub(crate) fn forget(&mut self, number: u64) {
        if let Some(object) = usize::try_from(number)
            .ok()
            .and_then(|at| self.0.get_mut(at))
        {
            *object = VictimObject::Gone;
        }
    }
}
