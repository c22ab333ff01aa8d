package watch

import "testing"

// TestObjectAgain: manifests give the index one object again when an earlier file with the same Service goes. No
// earlier snapshot changes by that, and no change is lost, also where spec.externalIPs are ignored.
func TestObjectAgain(t *testing.T) {
	for _, ignore := range []bool{false, true} {
		ix := newIndex("node-0")
		ix.options.IgnoreExternalIPs = ignore
		api := uniformService(0)
		api.Spec.ExternalIPs = []string{"198.51.100.1"}
		object := convertService(api)
		ix.setSlice(convertSlice(uniformSlice(0, 1)))
		ix.setService(object)
		first := ix.flush()
		text := first.String()
		ix.setService(convertService(api)) // of the earlier file
		ix.flush()
		ix.setSlice(convertSlice(uniformSlice(0, 2)))
		ix.setService(object)
		second := ix.flush()
		if first.String() != text {
			t.Errorf("external IPs ignored: %t: the first snapshot was\n%s\nand is\n%s", ignore, text, first)
		}
		for _, s := range second.Services.All() {
			if n := s.Ports[0].Endpoints.Len(); n != 2 {
				t.Errorf("external IPs ignored: %t: %d endpoints, want 2", ignore, n)
			}
		}
	}
}

// TestManyAtOnce: more Services than are joined at once make the same snapshot as when they come one after the other.
func TestManyAtOnce(t *testing.T) {
	const services = 20_000
	together, apart := newIndex("node-0"), newIndex("node-0")
	for i := range services {
		for _, ix := range []*index{together, apart} {
			ix.setService(convertService(uniformService(i)))
			if i%3 > 0 {
				ix.setSlice(convertSlice(uniformSlice(i, i%3)))
			}
		}
		if i%1000 == 0 {
			apart.flush()
		}
	}
	compareSnapshots(t, "apart", apart.flush(), together.flush())
	for _, ix := range []*index{together, apart} {
		for i := range services {
			if i%2 == 0 {
				ix.deleteService(convertService(uniformService(i)).key)
			}
			if ix == apart && i%1000 == 0 {
				ix.flush()
			}
		}
	}
	compareSnapshots(t, "apart, half of them", apart.flush(), together.flush())
}
