package controlplane

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
)

// Write is a change of an object in etcd.
type Write struct {
	// At is when etcd told of it.
	At time.Time
	// Name is the object's, with its namespace and a slash before it if it has one.
	Name string
	// Object is nil when it was deleted.
	Object runtime.Object
}

// Follow calls do with each write to the objects of a resource, from the start on, until ctx ends. The resource is as
// etcd's keys have it, such as minions or pods/default. It asks etcd itself: that one answers while the API server is
// away, and leaves nothing out when the API server comes back. It calls started once no write from then on is missed.
func (c *Cluster) Follow(ctx context.Context, resource string, started func(), do func(Write)) error {
	client := c.newEtcdClient()
	defer client.close()
	prefix := registry + resource + "/"
	err := client.follow(ctx, prefix, started, func(e etcdEvent) error {
		w := Write{At: time.Now(), Name: strings.TrimPrefix(string(e.KV.Key), prefix)}
		if e.Type != etcdDelete {
			var err error
			if w.Object, _, err = scheme.Codecs.UniversalDeserializer().Decode(e.KV.Value, nil, nil); err != nil {
				return fmt.Errorf("%s: %w", e.KV.Key, err)
			}
		}
		do(w)
		return nil
	})
	if ctx.Err() != nil {
		return nil
	}
	return fmt.Errorf("follow %s in etcd: %w", resource, err)
}

// etcdEvent is an event of a watch.
type etcdEvent struct {
	Type string
	KV   struct{ Key, Value []byte }
}

// etcdDelete is the type of the event of a deletion. That of a write is left out in the JSON form, as its default.
const etcdDelete = "DELETE"

// follow watches all keys with a prefix. It returns only with an error.
func (c *etcdClient) follow(ctx context.Context, prefix string, started func(), do func(etcdEvent) error) error {
	end := []byte(prefix)
	end[len(end)-1]++ // the first key behind those with the prefix
	answer, err := c.post(ctx, "/v3/watch", message{"create_request": message{"key": []byte(prefix), "range_end": end}})
	if err != nil {
		return err
	}
	defer answer.Close()
	for messages := json.NewDecoder(answer); ; {
		var m struct {
			Result struct {
				Created, Canceled bool
				Events            []etcdEvent
			}
			Error json.RawMessage
		}
		if err := messages.Decode(&m); err != nil {
			return err
		}
		switch {
		case len(m.Error) > 0:
			return fmt.Errorf("etcd answered: %s", m.Error)
		case m.Result.Canceled:
			return errors.New("etcd ended the watch")
		case m.Result.Created:
			started()
		}
		for _, e := range m.Result.Events {
			if err := do(e); err != nil {
				return err
			}
		}
	}
}
