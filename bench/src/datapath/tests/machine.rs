//! A machine that runs the compiled programs instruction by instruction, counts these, and notes which lines of which table they
//! touch.
//!
//! Elements of tables are read from the kernel's maps when they are first asked for; what programs change stays here.
//! Where an element lies is the kernel's layout (`kernel/bpf/arraymap.c`, `hashtab.c` of Linux 6.12): values of an
//! array follow each other in multiples of eight bytes, those of a per-CPU array lie behind a table of pointers, and an
//! element of a hash table is a head of 48 bytes, the key and the value, behind a bucket of 16 bytes.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    os::fd::{AsFd as _, AsRawFd as _},
};

use aya::maps::MapData;
use aya_obj::{
    Object,
    generated::{bpf_insn, bpf_map_type as kind},
};
use fastpath::{clock::monotonic_ns, load::Loaded, object};

/// Bytes of a cache line, as a power of two.
const LOG2_LINE: u32 = 6;
/// Each map has so much of the address space; the first ones are the machine's own.
const LOG2_REGION: u32 = 40;
/// Half of it, where a map has two parts.
const SECOND_PART: u64 = 1 << (LOG2_REGION - 1);
const CONTEXT: u64 = 1 << LOG2_REGION;
const STACK: u64 = 2 << LOG2_REGION;
const FIRST_MAP: u64 = 8;
/// Frames lie where a context's 32 bits reach.
const FRAME: u64 = 1 << 20;
/// Bytes of a hash element in front of its key, and where its hash and the mark of its use are.
const ELEMENT_HEAD: u64 = 48;
const ELEMENT_HASH: u64 = 40;
const ELEMENT_USED: u64 = 35;

struct Table {
    name: String,
    kind: u32,
    key: u64,
    value: u64,
    entries: u64,
    /// None for the compiler's own data.
    map: Option<MapData>,
    /// Places of hash elements.
    places: HashMap<Vec<u8>, u64>,
}

/// What a run did.
pub(super) struct Run {
    /// Lines by table.
    pub(super) lines: BTreeMap<String, usize>,
    /// BPF instructions; a helper is one.
    pub(super) instructions: usize,
    /// What the program returned.
    pub(super) action: u64,
}

pub(super) struct Machine {
    programs: HashMap<String, Vec<bpf_insn>>,
    stages: Vec<String>,
    tables: Vec<Table>,
    memory: HashMap<u64, u8>,
    touched: BTreeSet<u64>,
    executed: usize,
    now: u64,
}

impl Machine {
    /// Takes the product as it is loaded; `stages` are the programs of its tail calls.
    pub(super) fn new(product: &Loaded, stages: Vec<String>) -> Self {
        let mut object = Object::parse(object::bytes()).unwrap();
        let maps = object.maps.clone();
        let mut tables = Vec::new();
        let mut memory = HashMap::new();
        for (name, map) in &maps {
            let base = base(tables.len());
            let loaded = (!name.starts_with('.')).then(|| product.map(name).unwrap());
            if loaded.is_none() {
                let data = map.data().iter().enumerate();
                memory.extend(data.map(|(at, byte)| (base + at as u64, *byte)));
            }
            let entries = loaded.as_ref().map(|map| map.info().unwrap().max_entries());
            tables.push(Table {
                name: name.clone(),
                kind: map.map_type(),
                key: map.key_size().into(),
                value: map.value_size().into(),
                entries: entries.unwrap_or(1).into(),
                map: loaded,
                places: HashMap::new(),
            });
        }
        let text = object.functions.keys().map(|(section, _)| *section);
        let text = text.collect();
        let numbered = tables.iter().enumerate();
        let numbered = numbered.map(|(at, table)| {
            let number = i32::try_from(at).unwrap();
            (table.name.as_str(), number, &maps[&table.name])
        });
        object.relocate_maps(numbered, &text).unwrap();
        object.relocate_calls(&text).unwrap();
        let programs = object.programs.iter().map(|(name, program)| {
            let function = &object.functions[&program.function_key()];
            (name.clone(), function.instructions.clone())
        });
        Self {
            programs: programs.collect(),
            stages,
            tables,
            memory,
            touched: BTreeSet::new(),
            executed: 0,
            now: monotonic_ns(),
        }
    }

    /// Runs an XDP program over a frame that came in on a device.
    pub(super) fn run_xdp(&mut self, program: &str, frame: &[u8], device: u32) -> Run {
        self.set_context(0, frame);
        self.store(CONTEXT + 12, 4, device.into());
        self.run(program)
    }

    /// Runs a TC program over a packet that leaves by a device.
    pub(super) fn run_tc(&mut self, program: &str, frame: &[u8], device: u32) -> Run {
        self.set_context(76, frame);
        self.store(CONTEXT, 4, frame.len() as u64);
        let protocol = u16::from_ne_bytes([frame[12], frame[13]]);
        self.store(CONTEXT + 16, 4, protocol.into());
        self.store(CONTEXT + 40, 4, device.into());
        self.run(program)
    }

    fn set_context(&mut self, data: u64, frame: &[u8]) {
        for at in 0..256 {
            self.memory.insert(CONTEXT + at, 0);
        }
        self.store(CONTEXT + data, 4, FRAME);
        self.store(CONTEXT + data + 4, 4, FRAME + frame.len() as u64);
        self.write(FRAME, frame);
    }

    fn run(&mut self, program: &str) -> Run {
        self.touched.clear();
        self.executed = 0;
        let action = self.execute(program);
        let mut lines = BTreeMap::new();
        for line in &self.touched {
            let table = (line >> (LOG2_REGION - LOG2_LINE)) - FIRST_MAP;
            let name = &self.tables[usize::try_from(table).unwrap()].name;
            *lines.entry(name.clone()).or_default() += 1;
        }
        Run {
            lines,
            instructions: self.executed,
            action,
        }
    }

    fn touch(&mut self, address: u64, length: u64) {
        if address >> LOG2_REGION >= FIRST_MAP && length > 0 {
            let lines = address >> LOG2_LINE..=(address + length - 1) >> LOG2_LINE;
            self.touched.extend(lines);
        }
    }

    fn read(&self, address: u64, length: u64) -> Vec<u8> {
        let byte = |at| match self.memory.get(&at) {
            Some(byte) => *byte,
            None if at >> LOG2_REGION == STACK >> LOG2_REGION => 0,
            None => panic!("nothing lies at {at:#x}"),
        };
        (address..address + length).map(byte).collect()
    }

    fn write(&mut self, address: u64, bytes: &[u8]) {
        self.memory.extend((address..).zip(bytes.iter().copied()));
    }

    fn load(&mut self, address: u64, size: u64) -> u64 {
        self.touch(address, size);
        let mut word = [0; 8];
        word[..usize::try_from(size).unwrap()].copy_from_slice(&self.read(address, size));
        u64::from_le_bytes(word)
    }

    fn store(&mut self, address: u64, size: u64, word: u64) {
        self.touch(address, size);
        self.write(
            address,
            &word.to_le_bytes()[..usize::try_from(size).unwrap()],
        );
    }

    fn execute(&mut self, program: &str) -> u64 {
        let mut code = self.programs[program].clone();
        let mut registers = [0_u64; 11];
        registers[1] = CONTEXT;
        registers[10] = STACK + 512;
        let mut callers: Vec<(usize, [u64; 5])> = Vec::new();
        let mut at = 0;
        loop {
            let instruction = code[at];
            at += 1;
            self.executed += 1;
            let (dst, src) = (
                usize::from(instruction.dst_reg()),
                usize::from(instruction.src_reg()),
            );
            let (op, imm) = (instruction.code, i64::from(instruction.imm).cast_unsigned());
            let place = |base: u64| base.wrapping_add_signed(instruction.off.into());
            let size = [4, 2, 1, 8][usize::from(op >> 3 & 3)];
            let operand = if op & 8 == 0 { imm } else { registers[src] };
            match op & 7 {
                0 => {
                    assert_eq!(op, 0x18, "a load of 64 bits is the only one of its class");
                    let high = code[at].imm;
                    at += 1;
                    registers[dst] = match src {
                        0 => {
                            u64::from(instruction.imm.cast_unsigned())
                                | (high.cast_unsigned() as u64) << 32
                        }
                        1 => imm,
                        2 => base(usize::try_from(imm).unwrap()) + u64::from(high.cast_unsigned()),
                        _ => panic!("a load of kind {src}"),
                    };
                }
                1 => registers[dst] = self.load(place(registers[src]), size),
                2 => self.store(place(registers[dst]), size, imm),
                3 if op & 0xe0 == 0xc0 => {
                    let place = place(registers[dst]);
                    let old = self.load(place, size);
                    let new = match instruction.imm {
                        0 | 1 => old.wrapping_add(registers[src]),
                        0x40 | 0x41 => old | registers[src],
                        0x50 | 0x51 => old & registers[src],
                        0xe1 => registers[src],
                        0xf1 if registers[0] == old => registers[src],
                        0xf1 => old,
                        other => panic!("atomic operation {other:#x}"),
                    };
                    self.store(place, size, new);
                    match instruction.imm {
                        0xf1 => registers[0] = old,
                        fetch if fetch & 1 == 1 => registers[src] = old,
                        _ => {}
                    }
                }
                3 => self.store(place(registers[dst]), size, registers[src]),
                4 | 7 => registers[dst] = calculate(op, registers[dst], operand, instruction.imm),
                _ => match op >> 4 {
                    8 if src == 1 => {
                        callers.push((at, [6, 7, 8, 9, 10].map(|saved| registers[saved])));
                        registers[10] += 512;
                        at = at.wrapping_add_signed(instruction.imm as isize);
                    }
                    8 if instruction.imm == 12 => {
                        let called = self.called(registers[2], registers[3]);
                        if let Some(called) = called {
                            code = self.programs[&called].clone();
                            callers.clear();
                            registers[10] = STACK + 512;
                            at = 0;
                        }
                    }
                    8 => registers[0] = self.help(instruction.imm, &registers),
                    9 => {
                        let Some((back, saved)) = callers.pop() else {
                            return registers[0];
                        };
                        at = back;
                        registers[6..].copy_from_slice(&saved);
                    }
                    condition => {
                        if holds(condition, op & 7 == 6, registers[dst], operand) {
                            at = at.wrapping_add_signed(instruction.off.into());
                        }
                    }
                },
            }
        }
    }

    /// The program that a tail call leads to; the kernel makes it a jump, so no line is touched.
    fn called(&self, map: u64, index: u64) -> Option<String> {
        let table = &self.tables[usize::try_from(map).unwrap()];
        let index = usize::try_from(index).unwrap();
        (table.name == "STAGES").then(|| self.stages[index].clone())
    }

    fn help(&mut self, helper: i32, r: &[u64; 11]) -> u64 {
        match helper {
            1 => self.look_up(r[1], r[2]).unwrap_or(0),
            2 => self.update(r[1], r[2], r[3]),
            5 | 160 => self.now,
            118 => self.now / 4_000_000,
            8 => 0,
            23 => 4,
            44 => {
                let data = self.load(CONTEXT, 4).wrapping_add(r[2]);
                self.store(CONTEXT, 4, data & 0xffff_ffff);
                for at in data..FRAME {
                    self.memory.entry(at).or_insert(0);
                }
                0
            }
            188 => self.load(CONTEXT + 4, 4) - self.load(CONTEXT, 4),
            // What they do to the packet is the packet's own.
            9 | 10 | 11 | 39 => 0,
            28 => 0,
            // No pod has a socket.
            99 => 0,
            other => panic!("helper {other} is not modelled"),
        }
    }

    fn look_up(&mut self, map: u64, key: u64) -> Option<u64> {
        let number = usize::try_from(map).unwrap();
        let key = {
            let length = self.tables[number].key;
            self.read(key, length)
        };
        let base = base(number);
        let table = &mut self.tables[number];
        let value = table.value.next_multiple_of(8);
        match table.kind {
            kind if kind == self::kind::BPF_MAP_TYPE_ARRAY as u32
                || kind == self::kind::BPF_MAP_TYPE_PERCPU_ARRAY as u32 =>
            {
                let index = u64::from(u32::from_le_bytes(key.clone().try_into().unwrap()));
                if index >= table.entries {
                    return None;
                }
                let place = base + index * value;
                if kind == self::kind::BPF_MAP_TYPE_PERCPU_ARRAY as u32 {
                    self.touch(base + SECOND_PART + index * 8, 8);
                }
                self.fetch(number, &key, place)?;
                Some(place)
            }
            kind if kind == self::kind::BPF_MAP_TYPE_HASH as u32
                || kind == self::kind::BPF_MAP_TYPE_LRU_HASH as u32 =>
            {
                let buckets = table.entries.next_power_of_two();
                let is_lru = kind == self::kind::BPF_MAP_TYPE_LRU_HASH as u32;
                let known = table.places.len() as u64;
                let size = ELEMENT_HEAD + table.key.next_multiple_of(8) + value;
                let place = *table.places.entry(key.clone()).or_insert(known);
                let element = base + place * size;
                let in_element = ELEMENT_HEAD + table.key.next_multiple_of(8);
                self.touch(base + SECOND_PART + scatter(&key) % buckets * 16, 8);
                self.fetch(number, &key, element + in_element)?;
                self.touch(element + ELEMENT_HASH, in_element - ELEMENT_HASH);
                if is_lru {
                    self.touch(element + ELEMENT_USED, 1);
                }
                Some(element + in_element)
            }
            kind if kind == self::kind::BPF_MAP_TYPE_LPM_TRIE as u32 => {
                let known = table.places.len() as u64;
                let place = base + *table.places.entry(key.clone()).or_insert(known) * 64;
                for node in self.nodes_on_the_way(number, &key) {
                    self.touch(base + SECOND_PART + (node << LOG2_LINE), 1);
                }
                self.fetch(number, &key, place)?;
                Some(place)
            }
            kind => panic!("{}: maps of kind {kind} are not modelled", table.name),
        }
    }

    /// Lists the nodes of a trie (`kernel/bpf/lpm_trie.c`) that a look-up reads, each with a line of its own: entries
    /// and forks that hold the address, and the one that does not, at which it ends.
    fn nodes_on_the_way(&self, number: usize, key: &[u8]) -> BTreeSet<u64> {
        let map = self.tables[number].map.as_ref();
        let mut prefixes: Vec<Vec<u8>> = Vec::new();
        while let Some(next) = map.and_then(|map| next_key(map, prefixes.last(), key.len())) {
            prefixes.push(next);
        }
        let length = |prefix: &[u8]| u64::from(u32::from_le_bytes(*prefix.first_chunk().unwrap()));
        let shared = |a: &[u8], b: &[u8]| {
            let differ = a[4..].iter().zip(&b[4..]).position(|(a, b)| a != b);
            let bits = differ.map_or(u64::MAX, |at| {
                8 * at as u64 + u64::from((a[4 + at] ^ b[4 + at]).leading_zeros())
            });
            bits.min(length(a)).min(length(b))
        };
        let mut nodes = BTreeSet::new();
        for prefix in &prefixes {
            let held = shared(prefix, key);
            if held == length(prefix) {
                nodes.insert(held);
            }
            let forks = prefixes.iter().filter(|other| *other != prefix);
            let forks = forks.map(|other| shared(prefix, other));
            nodes.extend(forks.filter(|fork| *fork <= held));
        }
        let last = nodes.last().copied();
        if prefixes
            .iter()
            .any(|prefix| Some(shared(prefix, key)) > last)
        {
            nodes.insert(u64::from(u8::MAX) + 1);
        }
        nodes
    }

    /// Reads a value from the kernel's map unless it is here already; nothing where there is none.
    fn fetch(&mut self, number: usize, key: &[u8], place: u64) -> Option<()> {
        if self.memory.contains_key(&place) {
            return Some(());
        }
        let table = &self.tables[number];
        let length = usize::try_from(table.value.next_multiple_of(8)).unwrap();
        let value = read_element(table.map.as_ref()?, key, length)?;
        self.write(place, &value);
        Some(())
    }

    fn update(&mut self, map: u64, key: u64, value: u64) -> u64 {
        let number = usize::try_from(map).unwrap();
        let length = self.tables[number].value;
        let bytes = self.read(value, length);
        // An element that is not there comes to be: its place is written too.
        let place = self.look_up(map, key);
        let place = place.unwrap_or_else(|| {
            let table = &self.tables[number];
            let key = self.read(key, table.key);
            let in_element = ELEMENT_HEAD + table.key.next_multiple_of(8);
            let size = in_element + table.value.next_multiple_of(8);
            base(number) + table.places[&key] * size + in_element
        });
        self.touch(place, length);
        self.write(place, &bytes);
        0
    }
}

const fn base(number: usize) -> u64 {
    (FIRST_MAP + number as u64) << LOG2_REGION
}

fn scatter(key: &[u8]) -> u64 {
    let mix = |word: u64, byte: &u8| (word ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    key.iter().fold(0xcbf2_9ce4_8422_2325, mix) >> 16
}

#[expect(clippy::cast_possible_truncation, reason = "takes the low bits")]
fn calculate(op: u8, dst: u64, operand: u64, imm: i32) -> u64 {
    let is_wide = op & 7 == 7;
    let (a, b) = match is_wide {
        true => (dst, operand),
        false => (dst & 0xffff_ffff, operand & 0xffff_ffff),
    };
    let bits = if is_wide { 64 } else { 32 };
    let shift = (b % bits) as u32;
    let result = match op >> 4 {
        0 => a.wrapping_add(b),
        1 => a.wrapping_sub(b),
        2 => a.wrapping_mul(b),
        3 => a.checked_div(b).unwrap_or(0),
        4 => a | b,
        5 => a & b,
        6 => a << shift,
        7 => a >> shift,
        8 => a.wrapping_neg(),
        9 => a.checked_rem(b).unwrap_or(a),
        10 => a ^ b,
        11 => b,
        12 if is_wide => (a.cast_signed() >> shift).cast_unsigned(),
        12 => ((a as u32).cast_signed() >> shift).cast_unsigned().into(),
        13 => {
            let swapped = dst.swap_bytes() >> (64 - imm);
            let kept = dst & (u64::MAX >> (64 - imm));
            // From and to the little end nothing moves.
            return if op & 8 == 0 { kept } else { swapped };
        }
        other => panic!("operation {other}"),
    };
    if is_wide {
        result
    } else {
        result & 0xffff_ffff
    }
}

#[expect(clippy::cast_possible_truncation, reason = "takes the low bits")]
fn holds(condition: u8, is_narrow: bool, a: u64, b: u64) -> bool {
    let (a, b, c, d) = match is_narrow {
        true => (
            a & 0xffff_ffff,
            b & 0xffff_ffff,
            i64::from(a as i32),
            i64::from(b as i32),
        ),
        false => (a, b, a.cast_signed(), b.cast_signed()),
    };
    match condition {
        0 => true,
        1 => a == b,
        2 => a > b,
        3 => a >= b,
        4 => a & b != 0,
        5 => a != b,
        6 => c > d,
        7 => c >= d,
        10 => a < b,
        11 => a <= b,
        12 => c < d,
        13 => c <= d,
        other => panic!("jump {other}"),
    }
}

/// Reads an element of a map, of a per-CPU one the first CPU's (`BPF_MAP_LOOKUP_ELEM`, bpf(2)).
fn read_element(map: &MapData, key: &[u8], length: usize) -> Option<Vec<u8>> {
    const CPUS: usize = 512;
    let mut value = vec![0_u8; length * CPUS];
    if !bpf(1, map, Some(key), &mut value) {
        return None;
    }
    value.truncate(length);
    Some(value)
}

/// Returns the key behind another one (`BPF_MAP_GET_NEXT_KEY`).
fn next_key(map: &MapData, key: Option<&Vec<u8>>, length: usize) -> Option<Vec<u8>> {
    let mut next = vec![0_u8; length];
    bpf(4, map, key.map(Vec::as_slice), &mut next).then_some(next)
}

fn bpf(command: i32, map: &MapData, key: Option<&[u8]>, answer: &mut [u8]) -> bool {
    #[repr(C)]
    struct Attributes {
        map: u64,
        key: *const u8,
        answer: *mut u8,
        flags: u64,
    }
    let attributes = Attributes {
        map: u64::try_from(map.fd().as_fd().as_raw_fd()).unwrap(),
        key: key.map_or(std::ptr::null(), <[u8]>::as_ptr),
        answer: answer.as_mut_ptr(),
        flags: 0,
    };
    // SAFETY: the attributes name a key of the map's length and room for what either command answers; both outlive the
    // call.
    let outcome = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            command,
            &raw const attributes,
            size_of::<Attributes>(),
        )
    };
    outcome == 0
}
