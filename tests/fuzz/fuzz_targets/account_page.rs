//! A tenant's own `usage` page with arbitrary content, as the agent and the tenant's other programs read it. The
//! numbers of other tenants must not change.
//!
//! The input is a list of eleven-byte writes: a part of the page, a line of it, and the word.
#![no_main]

use std::cell::RefCell;
use std::ffi::CString;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use apportion_abi::account::{
    ApiFamily, ChargeOutcome, JoinOutcome, LimitsMap, NewCard, ProcessRegistration, SLOTS, UsageMap,
};
use apportion_abi::{Bytes, CardUuid};
use libfuzzer_sys::fuzz_target;

const LINE: usize = 64;
const CARDS: usize = 2;
/// Where the lines of the cards, the heads of the process records and the claims begin.
const USES: usize = 2;
const HEADS: usize = USES + CARDS;
const CLAIMS: usize = HEADS + SLOTS;
const END: usize = CLAIMS + SLOTS * CARDS;
/// The first byte of a write that changes the file's length.
const CUT: u8 = 255;
/// How many of the page's processes are checked one by one.
const LOOKED_AT: usize = 64;

struct FuzzAccount {
    path: PathBuf,
    limits: LimitsMap,
    usage: UsageMap,
    pristine: Vec<u8>,
}

struct FuzzTenants {
    own: FuzzAccount,
    other: FuzzAccount,
}

thread_local! {
    static TENANTS: RefCell<FuzzTenants> = RefCell::new(FuzzTenants::new());
}

fuzz_target!(|data: &[u8]| {
    TENANTS.with_borrow_mut(|tenants| tenants.suffer(data));
});

fn c_path(path: &Path) -> CString {
    CString::new(path.as_os_str().as_bytes()).expect("a temporary folder has no zero byte")
}

impl FuzzAccount {
    fn new(folder: &Path, name: &str) -> Self {
        let new = |place: u8| NewCard {
            uuid: CardUuid([place; 16]),
            total: Bytes(Bytes::GIB),
            limit: Bytes::from_mib(100),
            context_reserve: Bytes::from_mib(8),
        };
        let path = folder.join(name);
        let limits = folder.join(format!("{name}-limits"));
        let cards = [new(1), new(2)];
        let limits = LimitsMap::create(&c_path(&limits), &cards).expect("limits are created");
        let usage = UsageMap::create(&c_path(&path), CARDS).expect("a page is created");
        let owner = usage
            .usage()
            .register(process(11))
            .expect("the page is empty");
        let charged = usage
            .usage()
            .charge(owner, 0, Bytes::from_mib(60), &limits.cards()[0]);
        assert_eq!(charged, ChargeOutcome::Granted);
        usage
            .usage()
            .offer(owner, 0, 5, Bytes::from_mib(20))
            .expect("there is a place");
        let pristine = std::fs::read(&path).expect("the page is a file");
        Self {
            path,
            limits,
            usage,
            pristine,
        }
    }

    fn file(&self) -> File {
        File::options()
            .write(true)
            .open(&self.path)
            .expect("it is there")
    }
}

fn process(pid: u32) -> ProcessRegistration {
    ProcessRegistration {
        pid,
        start_time: 7,
        pid_namespace: 1,
    }
}

impl FuzzTenants {
    fn new() -> Self {
        let folder = std::env::temp_dir().join(format!("apportion-fuzz-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a temporary folder");
        let (own, other) = (
            FuzzAccount::new(&folder, "own"),
            FuzzAccount::new(&folder, "other"),
        );
        Self { own, other }
    }

    fn suffer(&mut self, data: &[u8]) {
        let file = self.own.file();
        let mut was_cut = None;
        for write in data.chunks_exact(11) {
            let line = usize::from(u16::from_le_bytes([write[1], write[2]]));
            let (first, end) = match write[0] & 7 {
                0 => (0, 1),
                1 => (1, USES),
                2 => (USES, HEADS),
                3..=5 => (HEADS, CLAIMS),
                _ => (CLAIMS, END),
            };
            let word = usize::from(write[0] >> 3) & 7;
            if write[0] == CUT {
                was_cut = Some(line * 8);
                continue;
            }
            let at = (first + line % (end - first)) * LINE + word * 8;
            file.write_all_at(&write[3..], at as u64)
                .expect("a page has room");
        }
        self.opened_again();
        if let Some(size) = was_cut {
            let mapped = UsageMap::adopt(&c_path(&self.own.path));
            file.set_len(size as u64).expect("it is a file");
            if let Ok(mapped) = mapped {
                self.read(&mapped);
                self.spend(&mapped);
            }
            self.opened_again();
            // Beyond the file's end, the old mapping would fault in a program. The agent's is guarded.
            file.set_len(self.own.pristine.len() as u64)
                .expect("it is a file");
        } else {
            self.read(&self.own.usage);
            self.spend(&self.own.usage);
        }
        file.write_all_at(&self.own.pristine, 0)
            .expect("a page has room");
        self.others_are_as_they_were();
    }

    /// A page whose header is not exactly right cannot be opened.
    fn opened_again(&self) {
        let file = File::open(&self.own.path).expect("it is there");
        let length = file.metadata().expect("it is a file").len();
        // The rest of the header has no meaning.
        let mut head = [0; 24];
        let is_right = length == self.own.pristine.len() as u64
            && file.read_exact_at(&mut head, 0).is_ok()
            && self.own.pristine.starts_with(&head);
        let opened = UsageMap::open(&c_path(&self.own.path));
        assert_eq!(opened.is_ok(), is_right, "{opened:?}");
    }

    /// Reads the page as the agent does in every tick.
    fn read(&self, page: &UsageMap) {
        let usage = page.usage();
        for card in 0..=CARDS {
            let used = usage.used(card);
            assert!(used.reserve <= used.claimed && used.modules <= used.claimed);
        }
        let processes: Vec<_> = usage.processes().collect();
        assert!(processes.len() <= SLOTS);
        for process in processes.iter().take(LOOKED_AT) {
            for card in 0..=CARDS {
                let (claimed, _) = usage.claimed_by(process.owner, card);
                assert!(usage.take_high(process.owner, card) >= claimed);
                let _ = usage.may_count(process.owner, card);
            }
        }
        for process in processes
            .iter()
            .take(LOOKED_AT)
            .filter(|of| of.registration.pid % 2 == 1)
        {
            let _ = usage.retire(process.owner);
            assert!(!usage.holds(process.owner));
        }
    }

    /// Charges as an honest program of the same tenant does.
    fn spend(&self, page: &UsageMap) {
        let usage = page.usage();
        let limits = self.own.limits.cards();
        let Some(owner) = usage.register(process(12)) else {
            return;
        };
        for (card, limit) in limits.iter().enumerate() {
            let ask = Bytes::from_mib(2);
            if usage.charge(owner, card, ask, limit) == ChargeOutcome::Granted {
                // A granted charge was checked to fit.
                usage.uncharge(owner, card, ask);
            }
            let _ = usage.claim_anyway(owner, card, ask);
            usage.deny(card, ApiFamily::ALL[0], ask);
        }
        if let JoinOutcome::Joined(share) = usage.join(owner, 5, |card| limits.get(card)) {
            usage.leave(share);
        }
        let _ = usage
            .offer(owner, 0, 6, Bytes::from_mib(1))
            .map(|share| usage.leave(share));
        let _ = usage.retire(owner);
    }

    fn others_are_as_they_were(&self) {
        let used = self.other.usage.usage().used(0);
        assert_eq!((used.claimed, used.denied), (Bytes::from_mib(60), 0));
        assert_eq!(
            self.other.limits.cards()[0].limits().limit,
            Bytes::from_mib(100)
        );
        assert_eq!(self.own.limits.cards()[0].limits().overhead, Bytes::ZERO);
    }
}
