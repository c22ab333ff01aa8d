package result

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Pictures writes an SVG file for each claim that the report has figures for, and
// returns the names of the files. Equal reports make equal files.
func Pictures(dir string, r *Report) ([]string, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("make pictures: %w", err)
	}
	var files []string
	for _, c := range claims() {
		p := newPicture(c, r)
		if p == nil {
			continue
		}
		if err := os.WriteFile(filepath.Join(dir, c.file), p.draw(), 0o644); err != nil {
			return files, fmt.Errorf("make picture of %q: %w", c.question, err)
		}
		files = append(files, c.file)
	}
	return files, nil
}

// picture is a claim with its figures.
type picture struct {
	claim
	series []series
	ours   *series
	// rivals has each way to run kube-proxy, also those that are not drawn: the sentence
	// compares with the best of them.
	rivals []series
	// number is the one that the claim is about: the greatest with a figure of nftproxy
	// and one of kube-proxy.
	number int
	// endpoints says that the report counts them: perService for each Service.
	endpoints bool
	// version is that of kube-proxy; "" if the report does not say it.
	version string
}

// newPicture returns nil if the report has no figure of nftproxy.
func newPicture(c claim, r *Report) *picture {
	p := &picture{claim: c, version: r.Facts.Versions["kube-proxy"]}
	cells := c.cells(r)
	p.endpoints = slices.ContainsFunc(cells, func(cell Cell) bool { return cell.Endpoints > 0 })
	for _, backend := range c.backends {
		if s, found := newSeries(cells, backend, c.key); found {
			p.series = append(p.series, s)
		}
	}
	for _, backend := range KubeProxies() {
		if s, found := newSeries(cells, backend, c.key); found {
			p.rivals = append(p.rivals, s)
		}
	}
	p.ours = p.of(NFTProxy)
	if p.ours == nil || len(p.ours.points) == 0 {
		return nil
	}
	p.number = p.ours.points[len(p.ours.points)-1].number
	with := 0
	for _, theirs := range p.theirs() {
		for _, both := range theirs.points {
			if p.ours.at(both.number) != nil {
				with = max(with, both.number)
			}
		}
	}
	if with > 0 {
		p.number = with
	}
	return p
}

// theirs are the drawn series of kube-proxy.
func (p *picture) theirs() []*series {
	var list []*series
	for _, backend := range KubeProxies() {
		if s := p.of(backend); s != nil {
			list = append(list, s)
		}
	}
	return list
}

// best is what kube-proxy did with the number that the claim is about, in
// the mode that took least, and in how many modes there is a figure. A limit that it
// exceeded is no figure while another mode has one.
func (p *picture) best() (text string, modes int) {
	var least *point
	for i := range p.rivals {
		s := &p.rivals[i]
		at := s.at(p.number)
		if at == nil {
			continue
		}
		modes++
		if least == nil || least.over && !at.over || least.over == at.over && at.value < least.value {
			least, text = at, s.text(at)
		}
	}
	return text, modes
}

func (p *picture) of(backend string) *series {
	i := slices.IndexFunc(p.series, func(s series) bool { return s.backend == backend })
	if i < 0 {
		return nil
	}
	return &p.series[i]
}

func (p *picture) title() string {
	first, last := &p.ours.points[0], &p.ours.points[len(p.ours.points)-1]
	f := figures{
		services: Count(p.number), ours: p.ours.text(p.ours.at(p.number)),
		few: Count(first.number), withFew: p.ours.text(first),
		many: Count(last.number), withMany: p.ours.text(last),
	}
	modes := 0
	f.theirs, modes = p.best()
	f.several, f.version = modes > 1, p.version
	return p.sentence(f)
}

// axisName is that of the horizontal axis.
func (p *picture) axisName() string {
	if p.endpoints {
		return fmt.Sprintf("number of Services, with %d endpoints each", perService)
	}
	return "number of " + p.things()
}

// description is the picture in words.
func (p *picture) description() string {
	words := []string{p.about + ", by the " + p.axisName() + "."}
	for i := range p.series {
		words = append(words, p.series[i].describe(p.things()))
	}
	return strings.Join(append(words, p.footnotes()...), " ")
}

// footnotes say why kube-proxy's lines end before nftproxy's.
func (p *picture) footnotes() []string {
	most := p.ours.points[len(p.ours.points)-1].number
	if most == p.number {
		return nil // the labels say it
	}
	var notes []string
	for _, s := range p.series {
		if s.at(most) != nil || !strings.HasPrefix(s.backend, "kube-proxy") {
			continue
		}
		note := "kube-proxy was not run with " + Count(most) + " " + p.things() + "."
		if why := s.gapAt(most); why != "" {
			note = "kube-proxy with " + Count(most) + " " + p.things() + ": " + why + "."
		}
		if !slices.Contains(notes, note) {
			notes = append(notes, note)
		}
	}
	return notes
}
