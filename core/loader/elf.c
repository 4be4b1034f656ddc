/* core/loader/elf.c: a look at a module's file before the dynamic linker runs any of its code. The linker's own words
 * ("invalid ELF header", "wrong ELF class") do not tell a user what to do; these sentences do. An AddressSanitizer
 * module even ends a plain process from inside dlopen, so that must be seen here. */
#include "config.h"

#include "core/base/error.h"
#include "core/base/file.h"
#include "core/loader/loader.h"

#include <elf.h>
#include <link.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

/* The linker's name for the ELF header of the library itself: which class and machine this process is. */
extern const ElfW(Ehdr) __ehdr_start __attribute__((visibility("hidden")));

static const struct {
    uint16_t machine;
    const char *name;
} machines[] = {
    {EM_386, "i386"}, {EM_X86_64, "x86_64"}, {EM_ARM, "arm"},    {EM_AARCH64, "aarch64"}, {EM_RISCV, "riscv"},
    {EM_PPC, "ppc"},  {EM_PPC64, "ppc64"},   {EM_S390, "s390x"}, {EM_MIPS, "mips"},       {258, "loongarch"},
};

static const char *machine_name(uint16_t machine, char out[32])
{
    for (size_t i = 0; i < sizeof(machines) / sizeof(*machines); i++)
        if (machines[i].machine == machine)
            return machines[i].name;
    snprintf(out, 32, "ELF machine %u", machine);
    return out;
}

/* What the dynamic symbol table tells. */
struct symbols {
    int found_table; /* 0: the file has no section headers; nothing is known */
    int entry;       /* moert_driver_v1 is defined */
    unsigned other;  /* N of another moert_driver_vN, 0 when there is none */
    int sanitizer;   /* MOERT_SANITIZER_* whose runtime the module needs */
};

static void note_symbol(const char *name, const ElfW(Sym) * symbol, struct symbols *s)
{
    unsigned major;
    char rest;

    if (symbol->st_shndx == SHN_UNDEF) {
        if (!strcmp(name, "__asan_init"))
            s->sanitizer = MOERT_SANITIZER_ADDRESS;
        else if (!strcmp(name, "__tsan_init"))
            s->sanitizer = MOERT_SANITIZER_THREAD;
    } else if (!strcmp(name, MOERT_DRIVER_SYMBOL)) {
        s->entry = 1;
    } else if (sscanf(name, "moert_driver_v%5u%c", &major, &rest) == 1) {
        s->other = major;
    }
}

static int inside(uint64_t offset, uint64_t bytes, uint64_t size)
{
    return offset <= size && bytes <= size - offset;
}

/* Walks .dynsym. Every offset is checked: the file may be anything. */
static void read_symbols(const uint8_t *data, uint64_t size, const ElfW(Ehdr) * header, struct symbols *s)
{
    uint64_t table = (uint64_t)header->e_shnum * sizeof(ElfW(Shdr));

    if (header->e_shentsize != sizeof(ElfW(Shdr)) || !inside(header->e_shoff, table, size))
        return;
    for (uint16_t i = 0; i < header->e_shnum; i++) {
        ElfW(Shdr) section, strings;
        memcpy(&section, data + header->e_shoff + i * sizeof(section), sizeof(section));
        if (section.sh_type != SHT_DYNSYM || section.sh_link >= header->e_shnum ||
            !inside(section.sh_offset, section.sh_size, size))
            continue;
        memcpy(&strings, data + header->e_shoff + section.sh_link * sizeof(strings), sizeof(strings));
        if (!strings.sh_size || !inside(strings.sh_offset, strings.sh_size, size) ||
            data[strings.sh_offset + strings.sh_size - 1])
            continue;
        s->found_table = 1;
        for (uint64_t at = 0; section.sh_size - at >= sizeof(ElfW(Sym)); at += sizeof(ElfW(Sym))) {
            ElfW(Sym) symbol;
            memcpy(&symbol, data + section.sh_offset + at, sizeof(symbol));
            if (symbol.st_name < strings.sh_size)
                note_symbol((const char *)data + strings.sh_offset + symbol.st_name, &symbol, s);
        }
    }
}

static const char *const sanitizer_names[] = {"none", "AddressSanitizer", "ThreadSanitizer"};

static moert_driver_state_t judge_symbols(const struct symbols *s, char *reason)
{
    if (s->sanitizer && s->sanitizer != MOERT_SANITIZER_ID) {
        snprintf(reason, MOERT_REASON_MAX,
                 "is built with %s and libmoert is not; build both with the same --enable-sanitizers",
                 sanitizer_names[s->sanitizer]);
        return MOERT_DRIVER_INCOMPATIBLE;
    }
    if (s->entry || !s->found_table)
        return MOERT_DRIVER_READY;
    if (s->other)
        snprintf(reason, MOERT_REASON_MAX, "is for driver ABI %u, this libmoert has ABI %d", s->other,
                 MOERT_DRIVER_ABI_MAJOR);
    else
        snprintf(reason, MOERT_REASON_MAX, "is no moert driver: it does not export %s", MOERT_DRIVER_SYMBOL);
    return MOERT_DRIVER_INCOMPATIBLE;
}

static moert_driver_state_t judge_header(const uint8_t *data, uint64_t size, ElfW(Ehdr) * header, char *reason)
{
    char have[32], need[32];

    if (size < EI_NIDENT || memcmp(data, ELFMAG, SELFMAG)) {
        snprintf(reason, MOERT_REASON_MAX, "is not an ELF file (%llu bytes)", (unsigned long long)size);
        return MOERT_DRIVER_LOAD_FAILED;
    }
    if (data[EI_CLASS] != __ehdr_start.e_ident[EI_CLASS]) {
        snprintf(reason, MOERT_REASON_MAX, "is a %s-bit module, this process is %s-bit",
                 data[EI_CLASS] == ELFCLASS32 ? "32" : "64",
                 __ehdr_start.e_ident[EI_CLASS] == ELFCLASS32 ? "32" : "64");
        return MOERT_DRIVER_INCOMPATIBLE;
    }
    if (size < sizeof(*header)) {
        snprintf(reason, MOERT_REASON_MAX, "ends inside its ELF header (%llu bytes)", (unsigned long long)size);
        return MOERT_DRIVER_LOAD_FAILED;
    }
    memcpy(header, data, sizeof(*header));
    if (data[EI_DATA] != __ehdr_start.e_ident[EI_DATA] || header->e_machine != __ehdr_start.e_machine) {
        snprintf(reason, MOERT_REASON_MAX, "is for %s, this process is %s", machine_name(header->e_machine, have),
                 machine_name(__ehdr_start.e_machine, need));
        return MOERT_DRIVER_INCOMPATIBLE;
    }
    if (header->e_type != ET_DYN) {
        snprintf(reason, MOERT_REASON_MAX, "is ELF but no shared object (type %u)", header->e_type);
        return MOERT_DRIVER_LOAD_FAILED;
    }
    return MOERT_DRIVER_READY;
}

/* Segments must lie inside the file: the dynamic linker maps them unseen, and touching a page past the end of a file
 * that was cut short (a broken copy) ends the process by SIGBUS. */
static moert_driver_state_t judge_segments(const uint8_t *data, uint64_t size, const ElfW(Ehdr) * header, char *reason)
{
    uint64_t table = (uint64_t)header->e_phnum * sizeof(ElfW(Phdr));

    if (header->e_phentsize != sizeof(ElfW(Phdr)) || !header->e_phnum || !inside(header->e_phoff, table, size)) {
        snprintf(reason, MOERT_REASON_MAX, "is damaged: its program headers are not inside the file (%llu bytes)",
                 (unsigned long long)size);
        return MOERT_DRIVER_LOAD_FAILED;
    }
    for (uint16_t i = 0; i < header->e_phnum; i++) {
        ElfW(Phdr) segment;
        memcpy(&segment, data + header->e_phoff + i * sizeof(segment), sizeof(segment));
        if ((segment.p_type == PT_LOAD || segment.p_type == PT_DYNAMIC) &&
            !inside(segment.p_offset, segment.p_filesz, size)) {
            snprintf(reason, MOERT_REASON_MAX, "is cut short: %llu bytes at offset %llu of a file of %llu",
                     (unsigned long long)segment.p_filesz, (unsigned long long)segment.p_offset,
                     (unsigned long long)size);
            return MOERT_DRIVER_LOAD_FAILED;
        }
    }
    return MOERT_DRIVER_READY;
}

moert_driver_state_t moert_loader_check_file(const char *path, char reason[MOERT_REASON_MAX])
{
    struct moert_error error = MOERT_ERROR_INIT;
    struct moert_mapping file;
    struct symbols symbols = {0};
    moert_driver_state_t state;
    ElfW(Ehdr) header;

    /* Read, not mapped: a file that shrinks under a mapping would end the process by SIGBUS. */
    if (moert_file_map(path, 1, &file, &error)) {
        struct stat st;
        if (!lstat(path, &st) && S_ISLNK(st.st_mode) && stat(path, &st))
            snprintf(reason, MOERT_REASON_MAX, "is a symbolic link to a file that is missing or not readable");
        else
            snprintf(reason, MOERT_REASON_MAX, "cannot be read: %.900s", error.text);
        return MOERT_DRIVER_LOAD_FAILED;
    }
    state = judge_header(file.data, file.size, &header, reason);
    if (state == MOERT_DRIVER_READY)
        state = judge_segments(file.data, file.size, &header, reason);
    if (state == MOERT_DRIVER_READY) {
        read_symbols(file.data, file.size, &header, &symbols);
        state = judge_symbols(&symbols, reason);
    }
    moert_file_unmap(&file);
    return state;
}
