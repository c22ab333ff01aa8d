package watch

import (
	"fmt"
	"slices"
	"strings"

	"nftproxy/model/service"
)

// Problems says in sentences what cannot be used now of a Service, of its EndpointSlices, and of the manifests that
// they are from: the first maxProblems, and then how many more there are. It may be called from any goroutine.
func (w *Watcher) Problems(name service.Name) []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.index.standing(name)
}

func (ix *index) standing(name service.Name) []string {
	j := ix.joined[name]
	if j == nil {
		return nil
	}
	var texts []string
	more := 0
	add := func(list []Problem) {
		for _, p := range list {
			if len(texts) == maxProblems {
				more++
			} else {
				texts = append(texts, p.about(name))
			}
		}
	}
	if barred := j.foreign; barred != nil && ix.serves(barred) {
		add(barred.text)
		add(barred.problems)
	}
	if j.object != nil {
		add(j.object.text)
		add(j.object.problems)
		for _, h := range ix.headless[name] {
			add([]Problem{h.problem()})
		}
	}
	for _, s := range j.slices {
		add(s.text)
		add(s.problems)
	}
	for _, s := range ix.straysOf(j) {
		add([]Problem{s.problem(j)})
	}
	if more > 0 {
		texts = append(texts, fmt.Sprintf("and %d more problems", more))
	}
	return texts
}

// about is the problem beside the name of its Service, which it leaves out.
func (p Problem) about(name service.Name) string {
	parts := []string{p.Object.String(), p.Field, p.Err.Error()}
	if p.Object.Kind == "Service" && service.NewName(p.Object.Namespace, p.Object.Name) == name {
		parts[0] = ""
	}
	return strings.Join(slices.DeleteFunc(parts, func(part string) bool { return part == "" }), ": ")
}
