// Package sbom promises the list of the modules in nftproxy's binaries as an SPDX 2.3
// document. It takes the list from the binaries themselves, where Go's linker has put it.
// The same binaries give the same document. The package looks up no licence and no known
// weakness.
package sbom

import (
	"cmp"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/spdx/tools-golang/json"
	"github.com/spdx/tools-golang/spdx"
	"github.com/spdx/tools-golang/spdxlib"
)

// unknown says that the document makes no claim about a field.
const unknown = "NOASSERTION"

// binary is a file, and the modules in it.
type binary struct {
	name, sum string
	info      *buildinfo.BuildInfo
}

// Write writes the document of one or more binaries. They are of one commit, whose time
// the document has.
func Write(w io.Writer, paths ...string) error {
	if len(paths) == 0 {
		return errors.New("a list of modules needs at least one binary")
	}
	var binaries []binary
	for _, p := range paths {
		b, err := read(p)
		if err != nil {
			return err
		}
		binaries = append(binaries, b)
	}
	slices.SortFunc(binaries, func(a, b binary) int { return cmp.Compare(a.name, b.name) })
	d, err := document(binaries)
	if err != nil {
		return err
	}
	if err := spdxlib.ValidateDocument(d); err != nil {
		return fmt.Errorf("check the document: %w", err)
	}
	return json.Write(d, w, json.Indent("  "))
}

func read(path string) (binary, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return binary{}, err
	}
	info, err := buildinfo.ReadFile(path)
	if err != nil {
		return binary{}, fmt.Errorf("read build information: %w", err)
	}
	sum := sha256.Sum256(content)
	return binary{filepath.Base(path), hex.EncodeToString(sum[:]), info}, nil
}

// document has a package for each binary, and one for each module in any of them.
func document(binaries []binary) (*spdx.Document, error) {
	created, err := commitTime(binaries[0].info)
	if err != nil {
		return nil, err
	}
	all := sha256.New()
	d := &spdx.Document{
		SPDXVersion: spdx.Version, DataLicense: spdx.DataLicense, SPDXIdentifier: "DOCUMENT",
		DocumentName: "nftproxy " + version(binaries[0].info.Main),
		CreationInfo: &spdx.CreationInfo{
			Created:  created.UTC().Format(time.RFC3339),
			Creators: []spdx.Creator{{CreatorType: "Tool", Creator: "nftproxy-hack-release"}},
		},
	}
	modules := map[string]*spdx.Package{}
	relate := func(from spdx.ElementID, kind string, to spdx.ElementID) {
		d.Relationships = append(d.Relationships, &spdx.Relationship{
			RefA: spdx.DocElementID{ElementRefID: from}, Relationship: kind, RefB: spdx.DocElementID{ElementRefID: to},
		})
	}
	for _, b := range binaries {
		fmt.Fprintln(all, b.name, b.sum)
		id := spdx.ElementID("Binary-" + word(b.name))
		d.Packages = append(d.Packages, &spdx.Package{
			PackageName: b.name, PackageSPDXIdentifier: id, PackageVersion: version(b.info.Main),
			PrimaryPackagePurpose:   "APPLICATION",
			PackageDownloadLocation: unknown, PackageLicenseConcluded: unknown, PackageLicenseDeclared: "Apache-2.0",
			PackageCopyrightText: unknown,
			PackageChecksums:     []spdx.Checksum{{Algorithm: spdx.SHA256, Value: b.sum}},
		})
		relate(d.SPDXIdentifier, "DESCRIBES", id)
		for _, m := range linked(b.info) {
			p := module(m)
			modules[string(p.PackageSPDXIdentifier)] = p
			relate(id, "DEPENDS_ON", p.PackageSPDXIdentifier)
		}
	}
	for _, id := range slices.Sorted(maps.Keys(modules)) {
		d.Packages = append(d.Packages, modules[id])
	}
	d.DocumentNamespace = "https://spdx.org/spdxdocs/nftproxy-" + hex.EncodeToString(all.Sum(nil))
	return d, nil
}

// commitTime is the time of the commit, or 1970 where the binary names none.
func commitTime(info *buildinfo.BuildInfo) (time.Time, error) {
	for _, s := range info.Settings {
		if s.Key == "vcs.time" {
			return time.Parse(time.RFC3339, s.Value)
		}
	}
	return time.Unix(0, 0), nil
}

// linked lists the modules of a binary, Go's standard library first.
func linked(info *buildinfo.BuildInfo) []*debug.Module {
	list := []*debug.Module{{Path: "stdlib", Version: strings.TrimPrefix(info.GoVersion, "go")}}
	for _, m := range info.Deps {
		if m.Replace != nil {
			m = m.Replace
		}
		list = append(list, m)
	}
	return list
}

func module(m *debug.Module) *spdx.Package {
	p := &spdx.Package{
		PackageName: m.Path, PackageSPDXIdentifier: spdx.ElementID("Module-" + word(m.Path)), PackageVersion: m.Version,
		PackageDownloadLocation: unknown, PackageLicenseConcluded: unknown, PackageLicenseDeclared: unknown,
		PackageCopyrightText: unknown,
		PackageExternalReferences: []*spdx.PackageExternalReference{{
			Category: "PACKAGE-MANAGER", RefType: "purl", Locator: "pkg:golang/" + m.Path + "@" + m.Version,
		}},
	}
	if m.Sum != "" {
		p.PackageComment = "go.sum: " + m.Sum
	}
	return p
}

func version(m debug.Module) string { return cmp.Or(m.Version, "(devel)") }

// word makes an identifier of letters, digits, dots and hyphens.
func word(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case 'a' <= r && r <= 'z', 'A' <= r && r <= 'Z', '0' <= r && r <= '9', r == '.', r == '-':
			return r
		}
		return '-'
	}, s)
}
