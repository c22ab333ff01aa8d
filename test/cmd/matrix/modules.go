package main

import (
	"bytes"
	"cmp"
	"debug/elf"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// module is a module of a kernel, uncompressed.
type module struct {
	Name string
	// File is its path below the kernel's folder of modules.
	File    string
	Content []byte
	// Needs are the modules that it needs, and Aliases the names under which the kernel asks for it beside its own.
	Needs, Aliases []string
}

// modules returns the wanted modules of a kernel and all that they need, each after those that it
// needs. Some wanted modules may be part of the kernel itself, or may not exist: missing names the
// latter. The folder is that of one kernel, such as /lib/modules/6.1.0-56-amd64. Debian's packages
// have no modules.dep, so the modules themselves are asked.
func modules(dir string, wanted []string) (found []module, missing []string, err error) {
	files, err := moduleFiles(dir)
	if err != nil {
		return nil, nil, err
	}
	builtin, err := builtIn(dir)
	if err != nil {
		return nil, nil, err
	}
	done := map[string]bool{}
	var add func(name string) error
	add = func(name string) error {
		if done[name] || builtin[name] {
			return nil
		}
		done[name] = true
		file, exists := files[name]
		if !exists {
			missing = append(missing, name)
			return nil
		}
		m := module{Name: name, File: strings.TrimSuffix(file, ".xz")}
		if m.Content, err = uncompressed(filepath.Join(dir, file)); err != nil {
			return err
		}
		if err := m.readInfo(); err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
		for _, n := range m.Needs {
			if err := add(n); err != nil {
				return err
			}
		}
		found = append(found, m)
		return nil
	}
	for _, name := range wanted {
		if err := add(name); err != nil {
			return nil, nil, err
		}
	}
	slices.Sort(missing)
	return found, missing, nil
}

// moduleFiles returns the files of modules by the modules' names.
func moduleFiles(dir string) (map[string]string, error) {
	files := map[string]string{}
	err := filepath.WalkDir(dir, func(file string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, _, isModule := strings.Cut(d.Name(), ".ko")
		if isModule && d.Type().IsRegular() {
			relative, err := filepath.Rel(dir, file)
			files[moduleName(name)] = relative
			return err
		}
		return nil
	})
	if err == nil && len(files) == 0 {
		err = fmt.Errorf("no modules in %s", dir)
	}
	return files, err
}

// builtIn returns the modules that are part of the kernel.
func builtIn(dir string) (map[string]bool, error) {
	text, err := os.ReadFile(filepath.Join(dir, "modules.builtin"))
	if err != nil {
		return nil, err
	}
	all := map[string]bool{}
	for line := range strings.Lines(string(text)) {
		all[moduleName(strings.TrimSuffix(path.Base(strings.TrimSpace(line)), ".ko"))] = true
	}
	return all, nil
}

// moduleName is a module's name as the kernel knows it. Files may have "-" for "_".
func moduleName(s string) string { return strings.ReplaceAll(s, "-", "_") }

// uncompressed reads a module. Go's library has no xz, so the command does that.
func uncompressed(file string) ([]byte, error) {
	if !strings.HasSuffix(file, ".xz") {
		return os.ReadFile(file)
	}
	out, err := exec.Command("xz", "-dc", file).Output()
	if exit := new(exec.ExitError); errors.As(err, &exit) {
		err = fmt.Errorf("%w: %s", err, bytes.TrimSpace(exit.Stderr))
	}
	if err != nil {
		return nil, fmt.Errorf("xz -dc %s: %w", file, err)
	}
	return out, nil
}

// readInfo reads what a module says of itself in its section .modinfo.
func (m *module) readInfo() error {
	file, err := elf.NewFile(bytes.NewReader(m.Content))
	if err != nil {
		return err
	}
	section := file.Section(".modinfo")
	if section == nil {
		return errors.New("not a kernel module: no section .modinfo")
	}
	info, err := section.Data()
	if err != nil {
		return err
	}
	m.Needs, m.Aliases = parseInfo(string(info))
	return nil
}

// parseInfo reads the dependencies of .modinfo, hard ones and those that are to be loaded before, and the aliases.
func parseInfo(info string) (needs, aliases []string) {
	for field := range strings.SplitSeq(info, "\x00") {
		key, value, _ := strings.Cut(field, "=")
		switch key {
		case "depends":
			needs = append(needs, strings.FieldsFunc(value, func(r rune) bool { return r == ',' })...)
		case "softdep":
			if before, found := strings.CutPrefix(value, "pre: "); found {
				before, _, _ = strings.Cut(before, "post:")
				needs = append(needs, strings.Fields(before)...)
			}
		case "alias":
			aliases = append(aliases, moduleName(value))
		}
	}
	for i := range needs {
		needs[i] = moduleName(needs[i])
	}
	slices.SortFunc(needs, cmp.Compare)
	return slices.Compact(needs), aliases
}

// withNeeds returns those of the modules that the chosen ones need, and these, in the order of the modules.
func withNeeds(all []module, chosen func(name string) bool) []module {
	needed := map[string]bool{}
	for _, m := range slices.Backward(all) { // each comes after those that it needs
		if needed[m.Name] || chosen(m.Name) {
			needed[m.Name] = true
			for _, n := range m.Needs {
				needed[n] = true
			}
		}
	}
	return slices.DeleteFunc(slices.Clone(all), func(m module) bool { return !needed[m.Name] })
}
