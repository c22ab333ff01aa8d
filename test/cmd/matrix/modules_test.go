package main

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestParseInfo: what a module says of the modules that it needs, and of its other names.
func TestParseInfo(t *testing.T) {
	info := "license=GPL\x00depends=nf-conntrack,nf_nat\x00softdep=pre: crc32c post: other\x00alias=net-pf-2\x00"
	needs, aliases := parseInfo(info)
	if want := []string{"crc32c", "nf_conntrack", "nf_nat"}; !slices.Equal(needs, want) {
		t.Errorf("needs %q, want %q", needs, want)
	}
	if want := []string{"net_pf_2"}; !slices.Equal(aliases, want) {
		t.Errorf("aliases %q, want %q", aliases, want)
	}
	if needs, aliases := parseInfo("depends=\x00"); len(needs)+len(aliases) != 0 {
		t.Errorf("needs %q, aliases %q; want none", needs, aliases)
	}
}

// TestOrder: each module comes after those that it needs, those of the kernel itself do not come, and
// those that do not exist are named.
func TestOrder(t *testing.T) {
	dir := t.TempDir()
	for file, depends := range map[string]string{
		"kernel/net/a.ko": "b,c-d", "kernel/net/b.ko": "c-d,inside", "kernel/lib/c-d.ko": "", "kernel/other.ko": "a",
	} {
		writeModule(t, filepath.Join(dir, file), depends)
	}
	if err := os.WriteFile(filepath.Join(dir, "modules.builtin"), []byte("kernel/inside.ko\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	found, missing, err := modules(dir, []string{"zz", "a", "c_d"})
	var names []string
	for _, m := range found {
		names = append(names, m.Name+"="+m.File)
	}
	if got, want := strings.Join(names, " "), "c_d=kernel/lib/c-d.ko b=kernel/net/b.ko a=kernel/net/a.ko"; err != nil ||
		got != want {
		t.Errorf("modules %s, %v; want %s", got, err, want)
	}
	if !slices.Equal(missing, []string{"zz"}) {
		t.Errorf("missing %q", missing)
	}
	names = nil
	for _, m := range withNeeds(found, func(name string) bool { return name == "b" }) {
		names = append(names, m.Name)
	}
	if want := []string{"c_d", "b"}; !slices.Equal(names, want) {
		t.Errorf("with those that it needs, b is %q; want %q", names, want)
	}
}

// TestNoModule: a file that is no module is an error that names it.
func TestNoModule(t *testing.T) {
	dir := t.TempDir()
	for _, file := range []string{"a.ko", "modules.builtin"} {
		if err := os.WriteFile(filepath.Join(dir, file), []byte("nonsense"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if _, _, err := modules(dir, []string{"a"}); err == nil || !strings.Contains(err.Error(), "a.ko") {
		t.Errorf("error %v", err)
	}
}

// writeModule writes an ELF file with the section .modinfo only.
func writeModule(t *testing.T, file, depends string) {
	t.Helper()
	info, names := "license=GPL\x00depends="+depends+"\x00", "\x00.modinfo\x00.shstrtab\x00"
	const header, section = 64, 64
	h := elf.Header64{
		Type: uint16(elf.ET_REL), Machine: uint16(elf.EM_X86_64), Version: uint32(elf.EV_CURRENT), Ehsize: header,
		Shoff: header, Shentsize: section, Shnum: 3, Shstrndx: 2,
	}
	copy(h.Ident[:], elf.ELFMAG)
	h.Ident[elf.EI_CLASS], h.Ident[elf.EI_DATA], h.Ident[elf.EI_VERSION] = byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB),
		byte(elf.EV_CURRENT)
	at := uint64(header + 3*section)
	sections := []elf.Section64{{},
		{Name: 1, Type: uint32(elf.SHT_PROGBITS), Off: at, Size: uint64(len(info))},
		{Name: 10, Type: uint32(elf.SHT_STRTAB), Off: at + uint64(len(info)), Size: uint64(len(names))},
	}
	var b bytes.Buffer
	for _, part := range []any{h, sections, []byte(info), []byte(names)} {
		if err := binary.Write(&b, binary.LittleEndian, part); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, b.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
}
